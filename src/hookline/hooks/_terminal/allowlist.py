"""Programs that only read, and the options with which they do.

The options of a program are two strings: ``short`` lists its letters, ``long`` the names of its long options. A sign
after an option describes it: ``:`` takes a value, ``/`` takes a value that is a path, ``?`` may have an attached
value, ``!`` follows links and is blocked if the guard is confined to a folder. ``#`` among the letters stands for a
number (``head -5``). All other options are blocked, and so are abbreviations.

The tables keep several options on a line (``fmt: skip``); with one per line they would take thousands of lines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Operands = Literal["paths", "text", "none", "pattern", "code", "plus"]


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


class Program(msgspec.Struct, frozen=True):
    """The options and operands that a program may have.

    ``operands`` is the kind of its other arguments: ``paths``; ``text``, which is not checked; ``none``; a ``pattern``
    and then paths (only paths if one of ``pattern_options`` is given); a script in the program's own ``code`` and then
    paths; or ``plus``, texts that begin with ``+``. ``max_operands`` limits their number.
    """

    short: str = ""
    long: str = ""
    operands: Operands = "paths"
    max_operands: int | None = None
    pattern_options: tuple[str, ...] = ()


_SUMS = Program("bctwz", "binary check tag text zero ignore-missing quiet status strict warn")
_GREP = (
    "after-context: before-context: context: basic-regexp extended-regexp fixed-strings perl-regexp regexp: file/ "
    "ignore-case no-ignore-case invert-match word-regexp line-regexp count color? colour? files-without-match "
    "files-with-matches max-count: only-matching quiet silent no-messages byte-offset with-filename no-filename label: "
    "line-number initial-tab null text binary-files: exclude: exclude-dir: include: recursive dereference-recursive! "
    "line-buffered null-data exclude-from/ directories: devices:"
)

PROGRAMS: dict[str, Program] = {
    "arch": Program(operands="none"),
    "base64": Program("diw:", "decode ignore-garbage wrap:"),
    "basename": Program("as:z", "multiple suffix: zero", "text"),
    "cal": Program("13jsmywYn:A:B:", "one three sunday monday julian year", "text"),
    "cat": Program("AbeEnstTuv", "show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting"),
    "cmp": Program("bi:ln:s", "print-bytes ignore-initial: verbose bytes: quiet silent"),
    "column": Program("tc:s:o:xneR:N:L", "table output-width: columns: separator: output-separator: fillrows"),
    "comm": Program("123z", "check-order nocheck-order output-delimiter: total zero-terminated"),
    "cut": Program(
        "b:c:d:f:nsz", "bytes: characters: delimiter: fields: complement only-delimited output-delimiter: "
        "zero-terminated"
    ),
    "date": Program("d:uRI?", "date: utc universal rfc-email iso-8601? rfc-3339:", "plus"),
    "df": Program(
        "aB:hHiklPTt:x:", "all block-size: human-readable si inodes local portability print-type total type: output?"
    ),
    "diff": Program(
        "qscC:uU:eynW:pF:NrabwBiETI:dZtx:#",
        "normal brief report-identical-files context? unified? ed side-by-side width: left-column "
        "suppress-common-lines show-c-function show-function-line: recursive no-dereference new-file ignore-case "
        "ignore-tab-expansion ignore-trailing-space ignore-space-change ignore-all-space ignore-blank-lines "
        "ignore-matching-lines: text strip-trailing-cr minimal color? exclude: tabsize: expand-tabs label:",
        max_operands=2,
    ),
    "dirname": Program("z", "zero", "text"),
    "du": Program(
        "0aB:bcd:hHklmsStx",
        "null all apparent-size block-size: bytes total max-depth: human-readable summarize separate-dirs si time? "
        "one-file-system exclude: inodes threshold:",
    ),
    "echo": Program(operands="text"),
    "expand": Program("it:", "initial tabs:"),
    "expr": Program(operands="text"),
    "false": Program(operands="text"),
    "file": Program("bikLhNrv0", "brief mime mime-type mime-encoding dereference no-dereference keep-going extension"),
    "fmt": Program("cstuw:g:p:", "crown-margin prefix: split-only tagged-paragraph uniform-spacing width: goal:"),
    "fold": Program("bsw:", "bytes spaces width:"),
    "free": Program("bkmghtlw", "bytes kilo mega giga human total lohi wide si", "none"),
    "grep": Program("A:B:C:EFGPe:f/iyvwxcLlm:oqsbHhnTZzaUrR!d:D:I#", _GREP, "pattern", None, ("e", "f", "regexp",
        "file")),
    "groups": Program(operands="text", max_operands=1),
    "head": Program("c:n:qvz#", "bytes: lines: quiet silent verbose zero-terminated"),
    "hexdump": Program("bcCdn:os:vx", "canonical length: skip: no-squeezing"),
    "hostname": Program("afiIsd", "all-fqdns all-ip-addresses fqdn short domain", "none"),
    "id": Program("agGnruz", "group groups name real user zero", "text", 1),
    "join": Program("a:e:ij:o:t:v:1:2:z", "ignore-case check-order nocheck-order header zero-terminated", "paths", 2),
    "jq": Program("cnrRsSajeCM", "color-output monochrome-output compact-output null-input raw-output raw-input "
        "slurp sort-keys ascii-output join-output "
        "exit-status tab indent: unbuffered", "code"),
    "ls": Program(
        "aAbBcCdfFgGhHiI:klL!mnNopqQrRsStT:uUvw:xXZ1",
        "all almost-all author escape block-size: ignore-backups color? directory classify? file-type format: "
        "full-time "
        "group-directories-first no-group human-readable si hide: indicator-style: inode ignore: kibibytes literal "
        "numeric-uid-gid quote-name quoting-style: reverse recursive size sort: time: time-style: tabsize: width: "
        "context",
    ),
    "lscpu": Program("abceJpxy", "all extended? json parse? bytes", "none"),
    "nl": Program("b:d:f:h:i:l:n:ps:v:w:", "body-numbering: number-format: number-separator: number-width: "
        "starting-line-number:"),
    "nproc": Program("", "all ignore:", "none"),
    "od": Program("A:j:N:S:t:vw?abcdfilosx", "address-radix: skip-bytes: read-bytes: strings? format: "
        "output-duplicates width?"),
    "paste": Program("d:sz", "delimiters: serial zero-terminated"),
    "printf": Program(operands="text"),
    "pwd": Program("LP", "logical physical", "none"),
    "readlink": Program("femnqsvz", "canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent"),
    "realpath": Program("emLPqsz", "canonicalize-existing canonicalize-missing logical physical quiet strip "
        "no-symlinks zero "
        "relative-to/ relative-base/"),
    "rev": Program(),
    "rg": Program(
        "A:B:C:ce:f/FiIlg:.nNm:oPqr:sSt:T:uUvwxHhp0M:j:d:E:",
        "after-context: before-context: context: count count-matches regexp: file/ fixed-strings ignore-case hidden "
        "files-with-matches files-without-match glob: iglob: line-number no-line-number max-count: only-matching pcre2 "
        "quiet replace: case-sensitive smart-case type: type-not: type-list unrestricted multiline multiline-dotall "
        "invert-match word-regexp line-regexp with-filename no-filename pretty files no-ignore no-ignore-vcs "
        "max-depth: "
        "max-columns: max-filesize: json stats sort: sortr: color: colors: heading no-heading column trim vimgrep text "
        "threads: null no-messages no-config passthru stop-on-nonmatch crlf encoding: no-unicode one-file-system",
        "pattern", None, ("e", "f", "regexp", "file", "files", "type-list"),
    ),
    "seq": Program("f:s:w#", "format: separator: equal-width", "text", 3),
    "sleep": Program(operands="text"),
    "sort": Program(
        "bcCdfghik:mMnrRsS:t:uVz",
        "ignore-leading-blanks dictionary-order ignore-case general-numeric-sort ignore-nonprinting month-sort "
        "human-numeric-sort numeric-sort random-sort reverse sort: version-sort check? key: merge stable "
        "buffer-size: field-separator: unique zero-terminated debug parallel:",
    ),
    "stat": Program("Lfc:t", "dereference file-system format: printf: terse cached:"),
    "strings": Program("afn:ot:e:wds:#", "all print-file-name bytes: radix: encoding: include-all-whitespace"),
    "tac": Program("bs:", "before separator:"),
    "tail": Program("c:n:qvz#", "bytes: lines: quiet silent verbose zero-terminated"),
    "tr": Program("cCdst", "complement delete squeeze-repeats truncate-set1", "text", 2),
    "tree": Program(
        "adfxL:P:I:iqNQpugshDFvtcUrCnAJX",
        "noreport charset: filelimit: timefmt: inodes device du si prune gitignore matchdirs dirsfirst filesfirst "
        "sort: "
        "metafirst",
    ),
    "true": Program(operands="text"),
    "tty": Program("s", "silent quiet", "none"),
    "uname": Program("asnrvmpio", "all kernel-name nodename kernel-release kernel-version machine processor "
        "operating-system",
        "none"),
    "unexpand": Program("at:", "all first-only tabs:"),
    "uniq": Program("cdDf:is:uw:z", "count repeated all-repeated? skip-fields: ignore-case skip-chars: unique "
        "zero-terminated check-chars: group?", max_operands=1),
    "uptime": Program("ps", "pretty since", "none"),
    "users": Program(operands="none"),
    "wc": Program("clLmw", "bytes chars lines max-line-length words total:"),
    "which": Program("as", "all", "text"),
    "who": Program("abdHlmpqrstTuw", "all boot heading count", "none"),
    "whoami": Program(operands="none"),
    "zcat": Program(),
    "zipinfo": Program("12slmvht", "", max_operands=1),
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "cksum"), _SUMS),
}  # fmt: skip
PROGRAMS |= {"egrep": PROGRAMS["grep"], "fgrep": PROGRAMS["grep"]}

SED = Program("nErsuze:", "quiet silent regexp-extended separate unbuffered null-data expression:", "code")
AWK = Program("F:v:", "field-separator: assign:", "code")
TAR = Program("tvzjJf/", "list verbose file/ gzip bzip2 xz zstd exclude: wildcards numeric-owner full-time", "text")
UNZIP = Program("lqvt", "")
TIMEOUT = Program("k:s:v", "foreground preserve-status kill-after: signal: verbose")
NICE = Program("n:#", "adjustment:")

FIND_TESTS = word_set(
    """
    -amin -atime -cmin -ctime -fstype -gid -group -ilname -iname -inum -ipath -iregex -links -lname -maxdepth -mindepth
    -mmin -mtime -name -path -perm -printf -regex -regextype -size -type -uid -used -user -wholename -iwholename -xtype
    """
)
FIND_WORDS = word_set(
    """
    -a -and -d -daystart -depth -empty -executable -false -ignore_readdir_race -ls -mount -nogroup -noleaf -not -nouser
    -nowarn -o -or -P -print -print0 -prune -quit -readable -true -warn -writable -xdev ! ( ) ,
    --help --version -version
    """
)

TEST_WORDS = word_set(
    """
    -a -b -c -d -e -ef -eq -f -g -G -ge -gt -h -k -L -le -lt -n -N -ne -nt -o -O -ot -p -r -s -S -t -u -w -x -z
    """
)

_DIFF = (
    "patch no-patch stat? shortstat numstat dirstat? name-only name-status summary raw cached staged merge-base "
    "unified: "
    "ignore-all-space ignore-space-change ignore-space-at-eol ignore-blank-lines ignore-cr-at-eol word-diff? "
    "color-words? "
    "word-diff-regex: color? no-color find-renames? find-copies? no-renames diff-filter: no-ext-diff no-textconv "
    "exit-code quiet full-index abbrev? relative? minimal patience histogram diff-algorithm: text check "
    "function-context compact-summary pickaxe-regex pickaxe-all inter-hunk-context: src-prefix: dst-prefix: no-prefix "
    "no-relative color-moved? binary patch-with-stat submodule? "
)
_LOG = _DIFF + (
    "oneline graph no-graph all branches? tags? remotes? decorate? no-decorate decorate-refs: abbrev-commit "
    "no-abbrev-commit merges no-merges first-parent reverse follow max-count: skip: since: after: until: before: "
    "author: "
    "committer: grep: invert-grep all-match regexp-ignore-case extended-regexp fixed-strings perl-regexp pretty? "
    "format: "
    "date: relative-date left-right left-only right-only cherry-pick cherry-mark cherry boundary "
    "simplify-by-decoration "
    "topo-order date-order author-date-order full-history source parents children walk-reflogs not no-notes "
    "min-parents: max-parents: ancestry-path? show-pulls name-status no-walk? cc combined-all-paths diff-merges: "
    "remerge-diff "
    "log-size no-mailmap use-mailmap expand-tabs? no-expand-tabs clear-decorations"
)
_REFS = "sort: format: contains: no-contains: merged: no-merged: points-at: color? no-color ignore-case count: "

GIT: dict[str, Program] = {
    "blame": Program("L:bcCeflMnpstw#", "porcelain line-porcelain root show-stats show-name show-number show-email "
        "date: "
        "since: abbrev? color-lines color-by-age first-parent reverse"),
    "branch": Program("arvq", "all remotes verbose list show-current column? no-column abbrev? no-abbrev " + _REFS),
    "cat-file": Program("tspe", "batch-check? batch-all-objects", "paths"),
    "check-ignore": Program("vnqz", "verbose non-matching quiet no-index"),
    "config": Program("lz", "list get get-all local show-origin show-scope name-only null default: type: bool int"),
    "count-objects": Program("vH", "verbose human-readable", "none"),
    "describe": Program("", "all tags long always dirty? abbrev? match: exclude: contains exact-match first-parent "
        "candidates:"),
    "diff": Program("pusU:wbzM?C?BRDS:G:WaqX?#", _DIFF),
    "diff-tree": Program("pusU:wbzM?C?rtmcS:G:#", _DIFF + "root cc no-commit-id name-only stdin"),
    "for-each-ref": Program("", _REFS),
    "grep": Program("A:B:C:EFGPe:ivwclLnHhopWqzaI#", "after-context: before-context: context: extended-regexp "
        "fixed-strings "
        "perl-regexp ignore-case invert-match word-regexp count files-with-matches files-without-match name-only "
        "line-number column cached untracked show-function function-context quiet break heading color? no-color and "
        "or not "
        "all-match max-depth: max-count: text only-matching threads: recursive", "pattern", None, ("e",)),
    "log": Program("pusU:wbzM?C?RS:G:WaqcmtL:n:iEFPg#", _LOG),
    "ls-files": Program("cdmoiszkutvfx:", "cached deleted modified others ignored stage directory no-empty-directory "
        "unmerged "
        "killed exclude: exclude-standard error-unmatch full-name abbrev? eol deduplicate recurse-submodules format:"),
    "ls-tree": Program("drtlz", "long name-only name-status object-only full-name full-tree abbrev? format:"),
    "merge-base": Program("a", "all octopus independent is-ancestor fork-point"),
    "name-rev": Program("", "tags all name-only refs: exclude: undefined always"),
    "reflog": Program("pusn:#", _LOG),
    "remote": Program("v", "verbose all push"),
    "rev-list": Program("n:iEFPg#", _LOG + " count objects timestamp header quiet"),
    "rev-parse": Program("q", "abbrev-ref? short? verify quiet show-toplevel show-prefix show-cdup git-dir "
        "absolute-git-dir "
        "git-common-dir is-inside-work-tree is-inside-git-dir is-bare-repository is-shallow-repository symbolic "
        "symbolic-full-name all branches? tags? remotes? show-superproject-working-tree show-object-format? "
        "default: revs-only no-revs flags no-flags local-env-vars"),
    "shortlog": Program("nsecw?", "numbered summary email committer group: " + _LOG),
    "show": Program("pusU:wbzM?C?RS:G:WaqcmtL:n:#", _LOG),
    "show-ref": Program("dsq", "head heads tags branches dereference hash? verify exists quiet abbrev? "
        "exclude-existing?"),
    "stash": Program("pu", _DIFF + "include-untracked oneline date: format: pretty?"),
    "status": Program("sbvu?z", "short branch show-stash porcelain? long verbose untracked-files? ignore-submodules? "
        "ignored? "
        "column? no-column ahead-behind no-ahead-behind renames no-renames find-renames?"),
    "tag": Program("ln?i", "list column? no-column " + _REFS),
    "version": Program("", "build-options", "none"),
    "whatchanged": Program("pusU:wbzM?C?n:#", _LOG),
    "worktree": Program("vz", "porcelain verbose"),
}  # fmt: skip

GIT_UNSAFE_SETTINGS = (
    "fsmonitor external command textconv clean smudge process hookspath program showsignature alternaterefscommand "
    "pager vcs promisor partialclone partialclonefilter uploadpack worktreeconfig path"
)
"""Settings with which a repository makes git run a program, fetch, or read another folder."""

COMMAND_RUNNERS = word_set(
    """
    . ash bash builtin busybox chroot command csh dash doas eval exec expect fish flock ksh mksh nohup nsenter parallel
    pkexec pwsh run0 runuser screen script setpriv setsid sg sh source ssh stdbuf su sudo systemd-run tcsh tmux toybox
    trap unshare watch zsh
    """
)
"""Programs that run the commands in their arguments, which cannot be checked. They are blocked without asking."""

HINTS = {
    "less": "Use head, tail or sed -n '1,100p'",
    "more": "Use head, tail or sed -n '1,100p'",
    "man": "Use PROGRAM --help if that is allowed",
    "xargs": "Name the files, or use grep -r or find",
    "env": "Ask for the value you need",
    "printenv": "Ask for the value you need",
    "tee": "Print it, without writing",
}
"""Advice to the model, by program: what to do instead."""

VARIABLES = frozenset({"LANG", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "NO_COLOR", "TZ"})
"""Environment variables that may be set before a command."""

SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/opt/homebrew/bin")
