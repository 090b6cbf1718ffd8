"""Hooks and tools from files and modules."""

import sys

import pytest

from hookline import HookRegistry
from hookline.config.loading import load_hooks, load_tools, source_location
from hookline.config.settings import DeclaredHook
from hookline.plugins import Plugin
from hookline.plugins.errors import LoadError
from hookline.tape import TapeHook

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard, observer
from hookline.plugins import Plugin
from other_rules import imported, imported_object

@guard(BEFORE_TOOL)
def keep_files(ctx, request):
    return HookResult.block("no")

class Limit:
    points = ("before_llm",)

    def __init__(self, most):
        self.most = int(most)

    def __call__(self, point, ctx, payload):
        return None

class Easy(Limit):
    def __init__(self):
        super().__init__(1)

limit = Limit(3)
if True:
    @observer("on_run_end")
    def watch(ctx, result):
        pass

def plain(ctx, payload):
    pass

several = [keep_files, limit]
bundle = Plugin("bundle", [watch])
number = 3
"""

OTHER = """
from hookline import observer

@observer("on_run_end")
def imported(ctx, result):
    pass

class Thing:
    points = ("on_run_end",)
    phase = "observe"

    def __call__(self, point, ctx, payload):
        pass

imported_object = Thing()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "other_rules.py").write_text(OTHER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "other_rules", raising=False)
    return tmp_path


def names(loaded):
    return [getattr(item.hook, "name", type(item.hook).__name__) for item in loaded]


def load(folder, *items):
    hooks, plugins = load_hooks(items, folder)
    return names(hooks) + [plugin.name for plugin in plugins]


def test_a_file_gives_the_hooks_it_defines_and_not_those_it_imports(folder):
    assert load(folder, str(folder / "rules.py")) == ["keep_files", "Limit", "watch"]


def test_a_list_named_hooks_selects_imported_hooks(folder):
    (folder / "listed.py").write_text("from other_rules import imported, imported_object\nhooks = [imported_object]\n")
    assert load(folder, str(folder / "listed.py")) == ["Thing"]


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("rules.py:keep_files", ["keep_files"]),
        ("rules.py:limit", ["Limit"]),
        ("rules.py:several", ["keep_files", "Limit"]),
        ("rules.py:Easy", ["Easy"]),
        ("rules.py:bundle", ["bundle"]),
        ("other_rules:imported", ["imported"]),
    ],
)
def test_a_name_gives_a_hook_an_instance_a_list_a_class_or_a_plugin(folder, reference, found):
    where = reference if ".py" not in reference else str(folder / reference)
    assert load(folder, where) == found


def test_a_declared_hook_is_created_with_its_args_and_registered_with_its_options(folder):
    declared = DeclaredHook(f"{folder}/rules.py:Limit", {"most": 7}, priority=50, name="limit7", on_failure="open")
    (loaded,), _ = load_hooks([declared], folder)
    assert loaded.hook.most == 7
    registry = HookRegistry()
    loaded.register(registry)
    (entry,) = registry.stack.entries("before_llm")
    assert (entry.name, entry.priority, entry.on_failure) == ("limit7", 50, "open")


def test_a_bare_name_is_a_built_in_hook_created_with_its_args(folder):
    declared = DeclaredHook("ModelRetryHook", {"max_retries": 1, "on": ["ValueError"]}, priority=7, name="mine")
    hooks, _ = load_hooks(["ToolRetryHook", declared], folder)
    assert names(hooks) == ["ToolRetryHook", "ModelRetryHook"]
    assert (hooks[1].hook.max_retries, hooks[1].hook.on) == (1, {"ValueError"})
    registry = HookRegistry()
    hooks[1].register(registry)
    (entry,) = registry.stack.entries("on_error")
    assert (entry.name, entry.priority) == ("mine", 7)


def test_the_tape_hook_can_be_named_alone_and_needs_a_path(folder):
    (loaded,), _ = load_hooks([DeclaredHook("TapeHook", {"path": "tapes"})], folder)
    assert isinstance(loaded.hook, TapeHook)
    with pytest.raises(LoadError, match=r"TapeHook needs path: { use = \"TapeHook\", args = { path = ... } }"):
        load_hooks(["TapeHook"], folder)


def test_bundles_of_built_in_hooks_are_created_when_used(folder):
    for item in ("limits_plugin", DeclaredHook("limits_plugin", {"max_steps": 5})):
        hooks, (plugin,) = load_hooks([item], folder)
        assert (hooks, plugin.name) == ([], "limits")
    hooks, plugins = load_hooks(["default_slm_hooks"], folder)
    assert ("LoopDetectorHook" in names(hooks), plugins) == (True, [])


def test_a_plain_function_is_a_hook_where_its_points_are_declared(folder):
    declared = DeclaredHook(f"{folder}/rules.py:plain", points=("before_tool",), tools="delete_*")
    (loaded,), _ = load_hooks([declared], folder)
    registry = HookRegistry()
    loaded.register(registry)
    assert registry.stack.entries("before_tool")[0].tools == ("delete_*",)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("missing.py", "there is no file"),
        ("broken.py", "line 2: invalid syntax: def f(:"),
        ("crash.py", "crash.py, line 2: ZeroDivisionError"),
        ("empty.py", "has no hooks. A hook is a function decorated with @hook"),
        ("classes.py", "Name its class: classes.py:Rule"),
        ("rules.py:keep_file", "Did you mean 'keep_files'?"),
        ("rules.py:number", "is a int, not a hook"),
        ("rules.py:plain", "is a function, not a hook"),
        ("rules.py:Limit", 'rules.py:Limit needs most: { use = "rules.py:Limit", args = { most = ... } }'),
        ("EgressGuard", 'EgressGuard needs hosts: { use = "EgressGuard", args = { hosts = ... } }'),
        ("PlanModeHook", "give at least one tool as confirm=['write_*'], or one effect as effects=['write']"),
        (
            DeclaredHook("limits_plugin", {"max_step": 50}),
            "limits_plugin has no argument 'max_step'. Did you mean 'max_steps'? It takes max_steps, max_tokens,",
        ),
        (DeclaredHook("TimingHook", {"path": "x"}), "TimingHook has no argument 'path'. It takes no args"),
        (DeclaredHook("TimingHook", points=("before_lm",)), "TimingHook with points: unknown point 'before_lm'"),
        ("Agent", "no built-in hook 'Agent'. 'hookline hooks --built-in' shows all. For your own hook, write"),
        (
            DeclaredHook("default_slm_hooks", priority=5, on_failure="open"),
            "default_slm_hooks is a bundle of hooks, so priority, on_failure cannot be set for it.",
        ),
        (DeclaredHook("rules.py:several", priority=5), "so priority cannot be set for it"),
        ("no_such_module_here:x", "there is no module 'no_such_module_here'"),
        ("json:dump", "is a function, not a hook"),
        ("json:dmup", "Did you mean 'dump'?"),
        ("rules", "write FILE.py, FILE.py:name or module:name"),
        ("ModelRetryHok", "no built-in hook 'ModelRetryHok'. Did you mean 'ModelRetryHook'?"),
        ("guards", "'guards'. Did you mean 'PathGuard' or 'EgressGuard'"),
        ("rules", "'rules'. Did you mean 'rules.py'?"),
        ("shadow", "shadow needs hook"),
        (DeclaredHook("ModelRetryHook", {"max_retries": 9}), "at most 2, not 9"),
        (DeclaredHook("FallbackModelHook", {"model": "opnai:x"}), "Did you mean 'openai'?"),
        (":x", "is not a hook: write FILE.py"),
        (DeclaredHook("rules.py:Limit", {"least": 1}), "has no argument 'least'. It takes most"),
        (DeclaredHook("rules.py:Limit", {"most": "x"}), "ValueError"),
        (DeclaredHook("rules.py:keep_files", {"a": 1}), "takes no args: it is a DecoratedFunction"),
        (DeclaredHook("rules.py:limit", tools="delete_*"), "tools= selects calls at tool points only"),
        (DeclaredHook("rules.py:bundle", priority=3), "so priority cannot be set for it"),
        (DeclaredHook("rules.py", {"a": 1}), "args need a single hook"),
    ],
)
def test_a_hook_that_cannot_be_loaded_is_reported_in_one_sentence(folder, monkeypatch, declared, says):
    monkeypatch.chdir(folder)
    (folder / "broken.py").write_text("x = 1\ndef f(:\n")
    (folder / "crash.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (folder / "empty.py").write_text("from other_rules import imported\n")
    (folder / "classes.py").write_text("class Rule:\n    points = ('before_llm',)\n")
    with pytest.raises(LoadError) as failure:
        load_hooks([declared], folder)
    assert says in str(failure.value)
    assert "\n" not in str(failure.value)


def test_an_error_in_a_constructor_does_not_show_secrets(folder):
    (folder / "keyed.py").write_text(
        "class Keyed:\n    points = ('before_llm',)\n"
        "    def __init__(self, api_key, url):\n        raise ValueError(f'{api_key!r} is no key for {url}')\n"
    )
    args = {"api_key": "hunter2", "url": "https://me:hunter2@example.org"}
    with pytest.raises(LoadError) as failure:
        load_hooks([DeclaredHook(f"{folder}/keyed.py:Keyed", args)], folder)
    assert "cannot be created with (api_key='***', url='https://***@example.org')" in str(failure.value)
    assert "is no key for" in str(failure.value)
    assert "hunter2" not in str(failure.value)


def test_arguments_that_do_not_fit_are_named_without_their_values(folder):
    args = {"api_key": "hunter2", "most": "hunter2"}
    with pytest.raises(LoadError, match="has no argument 'api_key'") as failure:
        load_hooks([DeclaredHook(f"{folder}/rules.py:Limit", args)], folder)
    assert "hunter2" not in str(failure.value)


def test_a_list_that_holds_nothing_gives_no_hooks(folder):
    (folder / "none.py").write_text("none = []\n")
    assert load_hooks([DeclaredHook(f"{folder}/none.py:none", priority=3)], folder) == ([], [])


def test_a_broken_file_leaves_no_module_behind_and_can_be_mended(folder):
    file = folder / "mend.py"
    file.write_text("from hookline import hook\n1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(LoadError):
        load_hooks([str(file)], folder)
    assert set(sys.modules) - before == set()
    file.write_text("from hookline import hook\n\n@hook('before_llm')\ndef mended(ctx, request): ...\n")
    assert load(folder, str(file)) == ["mended"]


def test_the_location_of_each_hook_is_its_file_and_line(folder):
    hooks, _ = load_hooks([str(folder / "rules.py")], folder)
    lines = RULES.splitlines()
    assert [source_location(item.hook) for item in hooks] == [
        f"{folder}/rules.py:{lines.index('@guard(BEFORE_TOOL)') + 1}",
        f"{folder}/rules.py:{lines.index('class Limit:') + 1}",
        f"{folder}/rules.py:{lines.index('''    @observer('on_run_end')'''.replace(chr(39), chr(34))) + 1}",
    ]


def test_a_file_with_hooks_and_tools_is_executed_once(folder):
    (folder / "both.py").write_text(
        "import builtins\nfrom hookline import hook, tool\n"
        "builtins.times_loaded = getattr(builtins, 'times_loaded', 0) + 1\n"
        "@hook('before_llm')\ndef a(ctx, request): ...\n"
        "@tool\ndef b() -> str:\n    'Say b.'\n    return 'b'\n"
    )
    import builtins

    try:
        assert load(folder, str(folder / "both.py")) == ["a"]
        assert [tool.name for tool in load_tools([str(folder / "both.py")], folder)] == ["b"]
        assert builtins.times_loaded == 1
    finally:
        del builtins.times_loaded


def test_tools_come_from_files_names_and_lists(folder):
    (folder / "kit.py").write_text(
        "from hookline import tool\n@tool\ndef a() -> str:\n    'Say a.'\n    return 'a'\n"
        "def plain() -> str:\n    'Say p.'\n    return 'p'\nmore = [a, plain]\nnumber = 3\n"
    )
    assert [t.name for t in load_tools([f"{folder}/kit.py"], folder)] == ["a"]
    assert len(load_tools([f"{folder}/kit.py:more", f"{folder}/kit.py:a"], folder)) == 2
    with pytest.raises(LoadError, match="not a tool"):
        load_tools([f"{folder}/kit.py:number"], folder)
    with pytest.raises(LoadError, match="has no tools"):
        load_tools([f"{folder}/other_rules.py"], folder)


def test_a_plugin_is_handed_on_whole(folder):
    _, (plugin,) = load_hooks([f"{folder}/rules.py:bundle"], folder)
    assert isinstance(plugin, Plugin)
    assert len(plugin.hooks) == 1


def test_folders_are_importable_only_while_something_in_them_is_loaded(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "broken.py").write_text("1 / 0\n")
    before = list(sys.path)
    load_hooks([], folder)
    load_tools([], folder)
    assert sys.path == before
    assert load(folder, "other_rules:imported") == ["imported"]
    assert load(folder, str(folder / "rules.py")) == ["keep_files", "Limit", "watch"]
    for broken in ("broken.py", "broken:x"):
        with pytest.raises(LoadError):
            load_hooks([broken], folder)
    assert sys.path == before


def test_a_folder_that_a_hooks_file_adds_to_the_path_stays_there(folder):
    (folder / "more.py").write_text(f"import sys\nsys.path.append({str(folder)!r})\nfrom other_rules import imported\n")
    load(folder, f"{folder}/more.py:imported")
    assert sys.path.count(str(folder)) == 1
