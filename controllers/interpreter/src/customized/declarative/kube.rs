//! Library for `require("kube")` in scripts: sums and values of quantities, and requirements and dependencies of pod
//! templates. Invalid arguments are rejected with the messages of Karmada's library.

use crowsnest_apimachinery::quantity::Quantity;
use mlua::{Function, Lua, Table, Value, Variadic};

use super::budget::Budget;
use super::values::CallArguments;
use super::{DEADLINE_EXCEEDED, type_of};
use crate::default::dependencies::from_pod_spec;
use crate::default::replicas::pod_requirements;

/// Maximum length of a quantity in bytes. Longer ones are invalid and are not repeated in error messages.
const MAX_QUANTITY_LENGTH: usize = 256;

pub(super) fn library(lua: &Lua, budget: &Budget) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.raw_set("resourceAdd", lua.create_function(|_, amounts| sum(amounts))?)?;
    library.raw_set("getResourceQuantity", lua.create_function(|_, amount| quantity_as_number(amount))?)?;
    library.raw_set("accuratePodRequirements", with_deadline(lua, budget, requirements)?)?;
    library.raw_set("getPodDependencies", with_deadline(lua, budget, dependencies)?)?;
    Ok(library)
}

/// Wraps a function that converts a pod template. The call fails if the script's time is already used up, because the
/// instruction hook cannot interrupt the conversion.
fn with_deadline(
    lua: &Lua,
    budget: &Budget,
    call: fn(&Lua, Variadic<Value>) -> mlua::Result<Value>,
) -> mlua::Result<Function> {
    let budget = budget.clone();
    lua.create_function(move |lua, arguments| match budget.is_expired() {
        true => Err(mlua::Error::runtime(DEADLINE_EXCEEDED)),
        false => call(lua, arguments),
    })
}

fn bad_argument(position: usize, function: &str, expected: &str, value: &Value) -> mlua::Error {
    let found = type_of(value);
    mlua::Error::runtime(format!("bad argument #{position} to {function} ({expected} expected, got {found})"))
}

/// Parses the quantity in an argument. Nil counts as zero. `position` is the number of the argument, from 1.
fn parse_quantity(function: &str, position: usize, value: &Value) -> mlua::Result<Quantity> {
    let text = match value {
        Value::Nil => return Ok(Quantity::ZERO),
        Value::String(text) if text.as_bytes().len() > MAX_QUANTITY_LENGTH => {
            return Err(mlua::Error::runtime(format!("a quantity has {MAX_QUANTITY_LENGTH} bytes at most")));
        }
        Value::String(text) => text.to_str()?.to_owned(),
        other => return Err(bad_argument(position, function, "string", other)),
    };
    Quantity::parse(&text).map_err(|problem| mlua::Error::runtime(format!("{text:?}: {problem}")))
}

fn sum(amounts: Variadic<Value>) -> mlua::Result<String> {
    let mut sum = Quantity::ZERO;
    for (index, amount) in amounts.iter().enumerate() {
        sum += parse_quantity("resourceAdd", index + 1, amount)?;
    }
    Ok(sum.to_string())
}

fn quantity_as_number(arguments: Variadic<Value>) -> mlua::Result<f64> {
    let [amount] = arguments.as_slice() else {
        return Err(mlua::Error::runtime("getResourceQuantity only accepts one argument"));
    };
    let amount = parse_quantity("getResourceQuantity", 1, amount)?.as_f64();
    match amount >= 0.0 && amount.is_finite() {
        true => Ok(amount),
        false => Err(mlua::Error::runtime(format!("quantity {amount} is not a positive number"))),
    }
}

fn pod_template(lua: &Lua, function: &str, template: &Value) -> mlua::Result<serde_json::Value> {
    match template {
        Value::Table(_) => CallArguments::new(lua, &[])?.to_json(template, &[]).map_err(mlua::Error::external),
        other => Err(bad_argument(1, function, "table", other)),
    }
}

fn requirements(lua: &Lua, arguments: Variadic<Value>) -> mlua::Result<Value> {
    let [template] = arguments.as_slice() else {
        return Err(mlua::Error::runtime("getPodRequirements only accepts one argument"));
    };
    let template = pod_template(lua, "accuratePodRequirements", template)?;
    let requirements = template.get("spec").and_then(pod_requirements);
    match requirements {
        None => Ok(Value::Nil),
        Some(requirements) => {
            CallArguments::new(lua, &[])?.push(&serde_json::to_value(requirements).map_err(mlua::Error::external)?)
        }
    }
}

fn dependencies(lua: &Lua, arguments: Variadic<Value>) -> mlua::Result<Value> {
    const FUNCTION: &str = "getPodDependencies";
    let [template, namespace] = arguments.as_slice() else {
        return Err(mlua::Error::runtime("getPodDependencies only accepts two argument"));
    };
    let template = pod_template(lua, FUNCTION, template)?;
    let namespace = match namespace {
        Value::Nil => "default".to_owned(),
        Value::String(text) => text.to_str()?.to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        other => return Err(bad_argument(2, FUNCTION, "string", other)),
    };
    let dependencies = from_pod_spec(template.get("spec"), &namespace);
    CallArguments::new(lua, &[])?.push(&serde_json::to_value(dependencies).map_err(mlua::Error::external)?)
}
