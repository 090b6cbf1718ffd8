from .format import RecordError as RecordError
