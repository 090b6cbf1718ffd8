"""Every block of every page is run or checked: here are those that are no commands and no program."""

import configparser
import json
import re
import sqlite3
import tomllib

import msgspec
import pytest

from hookline import Agent, HookResult, ObservabilityHook, RunStore, ScriptedModel, ToolCallRequest, call, guard, reply, tool
from hookline.config.sources import checked, read_file
from hookline.config.settings import KEYS
from hookline.kernel.points import POINTS
from hookline.plugins.manifest import Manifest
from hookline.plugins.settings import Setting
from hookline.providers.script import script_model
from hookline.stores.skill_files import read

from .blocks import GENERATED, KINDS, PAGES, ROOT, blocks_in, of_kind
