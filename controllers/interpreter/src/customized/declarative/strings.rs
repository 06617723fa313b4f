//! Replacements for library functions that run in C, where no instruction hook can interrupt them. They respect the
//! budget of the VM: searches are reimplemented, copies are limited before allocation, and all others check the time
//! first.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

use super::budget::Budget;
use super::pattern::{self, Capture, Match, PatternError};
use super::type_of;

/// Maximum length in bytes of a string created by a library function.
pub(super) const MAX_STRING_BYTES: usize = 16 << 20;

/// Lua code that replaces library functions.
const PRELUDE: &str = include_str!("prelude.lua");

/// Installs the limited functions. Scripts can reach the original functions only through them.
pub(super) fn install(lua: &Lua, budget: &Budget) -> mlua::Result<()> {
    let natives = lua.create_table()?;
    let checked_budget = budget.clone();
    natives.raw_set("is_late", lua.create_function(move |_, ()| Ok(checked_budget.is_expired()))?)?;
    for (name, search) in [("find", Search::Find), ("scan", Search::Scan), ("scan_literal", Search::ScanLiteral)] {
        let search_budget = budget.clone();
        natives
            .raw_set(name, lua.create_function(move |lua, arguments| search.run(lua, &arguments, &search_budget))?)?;
    }
    natives.raw_set("max_bytes", MAX_STRING_BYTES)?;
    let globals = lua.globals();
    lua.load(PRELUDE).set_name("=prelude").call::<()>((natives, globals.get::<Table>("string")?, globals))
}

/// Search functions called by the prelude. They return an error or nil, start and end of the match, and its captures.
#[derive(Debug, Clone, Copy)]
enum Search {
    /// `string.find`, optionally with a literal pattern.
    Find,
    /// The next match. A leading `^` anchors the pattern.
    Scan,
    /// The next match for `string.gmatch`, where `^` is an ordinary character.
    ScanLiteral,
}

impl Search {
    fn run(self, lua: &Lua, arguments: &MultiValue, budget: &Budget) -> mlua::Result<MultiValue> {
        let name = arguments.get(3).and_then(Value::as_string).map(|name| name.to_string_lossy()).unwrap_or_default();
        match self.search(lua, arguments, &name, budget) {
            Ok(Some((subject, found))) => results(lua, &subject, &found),
            Ok(None) => Ok(MultiValue::from_iter([Value::Nil, Value::Nil])),
            Err(problem) => Ok(MultiValue::from_iter([Value::String(lua.create_string(problem)?)])),
        }
    }

    fn search(
        self,
        lua: &Lua,
        arguments: &MultiValue,
        name: &str,
        budget: &Budget,
    ) -> Result<Option<(LuaString, Match)>, String> {
        let subject = string_argument(lua, arguments, 0, name)?;
        let pattern_text = string_argument(lua, arguments, 1, name)?;
        let length = subject.as_bytes().len();
        let Some(from) = start_offset(arguments.get(2), length, name)? else { return Ok(None) };
        let found = {
            let (subject, pattern_text) = (subject.as_bytes(), pattern_text.as_bytes());
            let is_literal = matches!(self, Search::Find)
                && (arguments.get(4).is_some_and(|plain| !matches!(plain, Value::Nil | Value::Boolean(false)))
                    || !pattern::has_specials(&pattern_text));
            match is_literal {
                true => pattern::find_plain(&subject, &pattern_text, from, budget),
                false => pattern::find(&subject, &pattern_text, from, !matches!(self, Search::ScanLiteral), budget),
            }
        };
        Ok(found.map_err(|error: PatternError| error.to_string())?.map(|found| (subject, found)))
    }
}

fn results(lua: &Lua, subject: &LuaString, found: &Match) -> mlua::Result<MultiValue> {
    let number = |position: usize| Value::Number(position as f64);
    let mut results = vec![Value::Nil, number(found.start + 1), number(found.end)];
    for capture in &found.captures {
        results.push(match capture {
            Capture::Position(position) => number(position + 1),
            Capture::Text(start, end) => {
                Value::String(lua.create_string(subject.as_bytes().get(*start..*end).unwrap_or_default())?)
            }
        });
    }
    Ok(MultiValue::from_vec(results))
}

/// A string argument. Numbers are converted.
fn string_argument(lua: &Lua, arguments: &MultiValue, index: usize, name: &str) -> Result<LuaString, String> {
    let value = arguments.get(index).unwrap_or(&Value::Nil);
    let found = match value {
        Value::String(_) | Value::Integer(_) | Value::Number(_) => lua.coerce_string(value.clone()).ok().flatten(),
        _ => None,
    };
    found.ok_or_else(|| format!("bad argument #{} to '{name}' (string expected, got {})", index + 1, type_of(value)))
}

/// Start of a search: `init` counts from one, or from the end if negative. `None` if it is past the end.
fn start_offset(init: Option<&Value>, length: usize, name: &str) -> Result<Option<usize>, String> {
    let init = match init {
        None | Some(Value::Nil) => 1,
        Some(Value::Integer(init)) => *init,
        Some(Value::Number(init)) => *init as i64,
        Some(other) => return Err(format!("bad argument #3 to '{name}' (number expected, got {})", type_of(other))),
    };
    let signed_length = i64::try_from(length).unwrap_or(i64::MAX);
    let from = if init < 0 { (signed_length.saturating_add(init)).max(0) } else { (init - 1).max(0) };
    Ok(usize::try_from(from).ok().filter(|from| *from <= length))
}
