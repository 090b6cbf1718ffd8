PRAGMA application_id = 1214991442;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE approvals (
        run_id TEXT, at REAL, call_id TEXT, tool TEXT, decision TEXT, decided_by TEXT, waited REAL
    );
INSERT INTO "approvals" VALUES('run_1',103.0,'c','add','approved','ann',1.0);
CREATE TABLE errors (
        run_id TEXT, at REAL, place TEXT, type TEXT, source TEXT, call_id TEXT, fatal INTEGER
    );
INSERT INTO "errors" VALUES('run_1',104.0,'model','Overloaded','m','',1);
CREATE TABLE model_calls (
        run_id TEXT, at REAL, hop INTEGER, attempt INTEGER, purpose TEXT, model TEXT, provider TEXT,
        organization_id TEXT, source TEXT, verdict TEXT, finish_reason TEXT, input_tokens INTEGER,
        output_tokens INTEGER, cached_tokens INTEGER, cost REAL, duration REAL
    );
INSERT INTO "model_calls" VALUES('run_1',102.0,0,1,'step','m','p','','model','cont','stop',10,5,0,0.25,1.0);
CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, task_id TEXT, correlation_id TEXT, session_id TEXT, agent TEXT, parent_run_id TEXT,
        host TEXT, pid INTEGER, started REAL, ended REAL, status TEXT, stop TEXT, error TEXT, steps INTEGER,
        tool_calls INTEGER, input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER, cost REAL, elapsed REAL
    );
INSERT INTO "runs" VALUES('run_1','task','corr','s','helper','run_0','h',1,100.0,104.0,'failed','error','Overloaded',2,1,10,5,0,0.5,4.0);
INSERT INTO "runs" VALUES('run_2','run_2','run_2','s','helper','','h',1,101.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE tool_calls (
        run_id TEXT, at REAL, call_id TEXT, attempt INTEGER, tool TEXT, outcome TEXT, duration REAL
    );
INSERT INTO "tool_calls" VALUES('run_1',103.0,'c',1,'add','ok',1.0);
CREATE TABLE verdicts (
        run_id TEXT, at REAL, point TEXT, call_id TEXT, hook TEXT, phase TEXT, verb TEXT, reason TEXT, duration REAL
    );
INSERT INTO "verdicts" VALUES('run_1',103.0,'before_tool','c','guard','guard','block','no',NULL);
COMMIT;
