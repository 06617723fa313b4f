//! The library scripts get with `require("kube")`: sums of quantities, and what a pod template needs.

use crowsnest_api::quantity::Quantity;
use mlua::{Lua, Table, Value, Variadic};

use super::values::{to_json, to_lua};
use crate::plan::interpreter::dependencies::of_pod_spec;
use crate::plan::interpreter::replicas::pod_requirements;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.raw_set("resourceAdd", lua.create_function(|_, amounts| sum(amounts))?)?;
    library.raw_set("getResourceQuantity", lua.create_function(|_, amount: Value| amount_of(&amount))?)?;
    library.raw_set("accuratePodRequirements", lua.create_function(requirements)?)?;
    library.raw_set("getPodDependencies", lua.create_function(dependencies)?)?;
    Ok(library)
}

/// A quantity as a script may write it.
fn quantity(value: &Value) -> mlua::Result<Quantity> {
    let text = match value {
        Value::String(text) => text.to_str()?.to_owned(),
        Value::Integer(whole) => whole.to_string(),
        Value::Number(number) => number.to_string(),
        other => {
            return Err(mlua::Error::runtime(format!("a quantity is a string or a number, not {}", other.type_name())));
        }
    };
    Quantity::parse(&text).map_err(|problem| mlua::Error::runtime(format!("{text:?}: {problem}")))
}

fn sum(amounts: Variadic<Value>) -> mlua::Result<String> {
    let mut sum = Quantity::ZERO;
    for amount in amounts.iter() {
        sum += quantity(amount)?;
    }
    Ok(sum.to_string())
}

fn amount_of(amount: &Value) -> mlua::Result<f64> {
    let amount = quantity(amount)?.as_f64();
    match amount >= 0.0 && amount.is_finite() {
        true => Ok(amount),
        false => Err(mlua::Error::runtime(format!("quantity {amount} is not a positive number"))),
    }
}

fn requirements(lua: &Lua, template: Value) -> mlua::Result<Value> {
    let template = to_json(&template, &[]).map_err(mlua::Error::external)?;
    let requirements = template.get("spec").and_then(pod_requirements);
    match requirements {
        None => Ok(Value::Nil),
        Some(requirements) => to_lua(lua, &serde_json::to_value(requirements).map_err(mlua::Error::external)?),
    }
}

fn dependencies(lua: &Lua, (template, namespace): (Value, Option<String>)) -> mlua::Result<Value> {
    let template = to_json(&template, &[]).map_err(mlua::Error::external)?;
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    let needed = of_pod_spec(template.get("spec"), namespace.as_deref().unwrap_or("default"));
    to_lua(lua, &serde_json::to_value(needed).map_err(mlua::Error::external)?)
}
