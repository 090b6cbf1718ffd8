from .format import RecordError as RecordError
from .hook import RecordHook as RecordHook
from .reading import Account as Account
from .reading import RecordedMoment as RecordedMoment
from .reading import RecordedRun as RecordedRun
from .reading import read_runs as read_runs
from .schema import record_schema as record_schema
