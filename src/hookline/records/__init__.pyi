from .format import RecordError as RecordError
from .hook import RecordHook as RecordHook
from .parquet import ParquetExport as ParquetExport
from .parquet import export_parquet as export_parquet
from .reading import Account as Account
from .reading import RecordedMoment as RecordedMoment
from .reading import RecordedRun as RecordedRun
from .reading import read_runs as read_runs
