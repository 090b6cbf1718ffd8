from .importing import ImportReport as ImportReport
from .importing import import_logs as import_logs
