//! Sandboxed Lua VM for one call, with limited memory and time.
//!
//! It provides what Karmada's scripts can use: the base, table, string and math libraries, the safe part of `os`, and
//! `require("kube")`. Each call has its own VM, so that scripts cannot leave state behind.
//!
//! A hook checks the time every few instructions. LuaJIT calls no hooks from compiled traces or from C. Therefore
//! compilation is disabled by not opening the `jit` library, and library functions whose work depends on their
//! arguments have their own limits ([`strings`]).

use std::time::Duration;

use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, VmState};

use super::budget::Budget;
use super::{DEADLINE_EXCEEDED, MAX_MEMORY_BYTES, kube, strings};

/// Globals that Karmada's Lua VM does not have.
const REMOVED_GLOBALS: [&str; 2] = ["coroutine", "gcinfo"];

/// Globals with access to code, files or metatables. Calling one raises Karmada's error.
const UNSUPPORTED_GLOBALS: [&str; 14] = [
    "collectgarbage",
    "dofile",
    "getfenv",
    "getmetatable",
    "load",
    "loadfile",
    "loadstring",
    "module",
    "newproxy",
    "rawequal",
    "rawget",
    "rawset",
    "setfenv",
    "setmetatable",
];

/// Functions kept in `os`. All others affect the process or its files.
const OS_FUNCTIONS: [&str; 4] = ["clock", "date", "difftime", "time"];

/// Lua chunk that returns a function which raises Karmada's error. It is written in Lua, so that the error names the
/// line of the script, as in Karmada.
const UNSUPPORTED_FUNCTION: &str = r#"
local name, error = ...
local sentence = 'call function ' .. name .. ' is not supported in karmada customized resourceinterpreter.'
return function() error(sentence, 2) end
"#;

/// Instructions between two checks of the time. Small, because one instruction can copy as much as the memory limit.
const INSTRUCTIONS_PER_TIME_CHECK: u32 = 100;

/// Lua chunk that replaces `pcall` and `xpcall`. After the timeout they raise its error again; otherwise a script could
/// catch it and continue forever. The handler of an `xpcall` runs after the error was caught: LuaJIT calls no hook
/// while it handles an error raised by a hook, so nothing could interrupt the handler.
const PROTECTED_CALLS: &str = r#"
local is_late, reason, pcall, error = ...
local function pass(...)
  if is_late() then error(reason, 0) end
  return ...
end
function _G.pcall(...) return pass(pcall(...)) end
local function failed(_, ...) return pass(false, ...) end
local function after(handler, ok, ...)
  if is_late() then error(reason, 0) end
  if ok then return true, ... end
  return failed(pcall(handler, ...))
end
function _G.xpcall(f, handler, ...) return after(handler, pcall(f, ...)) end
"#;

/// Creates a VM whose calls may take `time` in total.
pub(super) fn create_vm(time: Duration) -> mlua::Result<Lua> {
    // Without its jit library LuaJIT only interprets, which is required for hooks.
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    let globals = lua.globals();
    for name in REMOVED_GLOBALS {
        globals.raw_remove(name)?;
    }
    let error: Function = globals.get("error")?;
    for name in UNSUPPORTED_GLOBALS {
        globals.raw_set(
            name,
            lua.load(UNSUPPORTED_FUNCTION).set_name("=<string>").call::<Function>((name, error.clone()))?,
        )?;
    }
    let (native_functions, allowed_functions): (Table, Table) = (globals.get("os")?, lua.create_table()?);
    for name in OS_FUNCTIONS {
        allowed_functions.raw_set(name, native_functions.get::<Function>(name)?)?;
    }
    globals.raw_set("os", allowed_functions)?;
    // `print` has no output.
    globals.raw_set("print", lua.create_function(|_, ()| Ok(()))?)?;
    let budget = Budget::new(time);
    let library = kube::library(&lua, &budget)?;
    let require = lua.create_function(move |_, name: String| match name.as_str() {
        "kube" => Ok(library.clone()),
        other => Err(mlua::Error::runtime(format!("module {other} not found"))),
    })?;
    globals.raw_set("require", require)?;
    strings::install(&lua, &budget)?;
    install_limits(&lua, budget)?;
    Ok(lua)
}

fn install_limits(lua: &Lua, budget: Budget) -> mlua::Result<()> {
    let globals = lua.globals();
    let checked_budget = budget.clone();
    let is_late = lua.create_function(move |_, ()| Ok(checked_budget.is_expired()))?;
    let [pcall, error] = ["pcall", "error"].map(|name| globals.get::<Function>(name));
    lua.load(PROTECTED_CALLS).set_name("=pcall").call::<()>((is_late, DEADLINE_EXCEEDED, pcall?, error?))?;
    lua.set_global_hook(
        HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_TIME_CHECK),
        move |_, _| match budget.is_expired() {
            false => Ok(VmState::Continue),
            true => Err(mlua::Error::runtime(DEADLINE_EXCEEDED)),
        },
    )?;
    lua.set_memory_limit(MAX_MEMORY_BYTES)?;
    Ok(())
}
