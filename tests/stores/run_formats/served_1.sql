PRAGMA application_id = 1214991439;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE events (
        run_id TEXT NOT NULL, seq INTEGER NOT NULL, type TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (run_id, seq)
    ) WITHOUT ROWID;
INSERT INTO "events" VALUES('run_1',1,'run_accepted',100.0,X'7B7D');
INSERT INTO "events" VALUES('run_1',2,'run_closed',105.0,X'5B5D');
CREATE TABLE once (
        owner TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, run_id TEXT NOT NULL, at REAL NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL, PRIMARY KEY (owner, key)
    ) WITHOUT ROWID;
INSERT INTO "once" VALUES('me','key','digest','run_1',100.0,'h',1,NULL);
CREATE TABLE pushes (
    run_id TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, url TEXT NOT NULL, token TEXT NOT NULL,
    scheme TEXT NOT NULL, credentials TEXT NOT NULL, version TEXT NOT NULL, created REAL NOT NULL, seq INTEGER NOT NULL,
    done INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, claimed REAL NOT NULL, PRIMARY KEY (run_id, id)
) WITHOUT ROWID;
INSERT INTO "pushes" VALUES('run_1','p','me','https://example.com','','','','1.0',0.0,0,0,'h',1,100.0);
CREATE TABLE runs (
        id TEXT PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, session TEXT NOT NULL, session_id TEXT NOT NULL,
        task_id TEXT NOT NULL, correlation_id TEXT NOT NULL, transport TEXT NOT NULL, task TEXT NOT NULL,
        status TEXT NOT NULL, reply TEXT NOT NULL, error TEXT NOT NULL, reason TEXT NOT NULL, steps INTEGER NOT NULL,
        tool_calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, cost REAL, created REAL NOT NULL, started REAL, ended REAL,
        last_seq INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL
    );
INSERT INTO "runs" VALUES('run_1','helper','me','talk','served-1','run_1','run_1','api','the task','completed','the reply','','why',2,1,10,5,0,0.5,100.0,101.0,105.0,2,'h',1,NULL);
CREATE INDEX runs_by_time ON runs (created, id);
CREATE INDEX runs_by_owner ON runs (owner, created, id);
CREATE INDEX runs_by_session ON runs (session_id, created, id);
CREATE INDEX runs_open ON runs (status) WHERE ended IS NULL;
CREATE INDEX once_by_run ON once (run_id);
COMMIT;
