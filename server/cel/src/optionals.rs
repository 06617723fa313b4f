//! Corrections of the `cel` crate's optionals: zero values, optionals in lists, and equality.
//!
//! The `cel` crate loses optionals when it copies values, such as loop elements. They are therefore wrapped in an opaque
//! value inside lists; see [`super::rewrite`].

use std::sync::Arc;

use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::{Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::functions::charge_or_fail;

/// Wraps an optional as a list element.
pub(super) const WRAP_OPTIONAL: &str = "@wrap_optional";
/// Unwraps a list element to an optional.
pub(super) const UNWRAP_OPTIONAL: &str = "@unwrap_optional";
/// Creates an optional of a stored value, which has a value even for empty lists and maps.
pub(super) const OPTIONAL_OF_STORED: &str = "@optional_of_stored";

type Outcome = Result<Cel, ExecutionError>;

#[derive(Debug, PartialEq, Eq)]
struct WrappedOptional(Option<Cel>);

impl Opaque for WrappedOptional {
    fn runtime_type_name(&self) -> &str {
        "optional_type"
    }
}

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(WRAP_OPTIONAL, |optional: Cel| -> Outcome {
        Ok(Cel::Opaque(Arc::new(WrappedOptional(value_of(&optional)?.cloned()))))
    });
    context.add_function(UNWRAP_OPTIONAL, |wrapped: Cel| -> Outcome { Ok(optional(value_of(&wrapped)?.cloned())) });
    context.add_function(OPTIONAL_OF_STORED, |value: Cel| -> Outcome {
        let is_collection = matches!(value, Cel::List(_) | Cel::Map(_));
        Ok(optional(Some(value).filter(|value| is_collection || !is_zero_value(value))))
    });
    context.add_function("optional.ofNonZeroValue", |value: Cel| -> Outcome {
        Ok(optional(Some(value).filter(|value| !is_zero_value(value))))
    });
    context.add_function("optional.unwrap", |list: Cel| unwrap(&list));
    context.add_function("unwrapOpt", |This(list): This<Cel>| unwrap(&list));
}

fn optional(value: Option<Cel>) -> Cel {
    Cel::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// The value of a wrapped or unwrapped optional.
fn value_of(optional: &Cel) -> Result<Option<&Cel>, ExecutionError> {
    let Cel::Opaque(opaque) = optional else { return Err(ExecutionError::NoSuchOverload) };
    match (opaque.downcast_ref::<OptionalValue>(), opaque.downcast_ref::<WrappedOptional>()) {
        (Some(optional), _) => Ok(optional.value()),
        (_, Some(WrappedOptional(value))) => Ok(value.as_ref()),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn is_zero_value(value: &Cel) -> bool {
    match value {
        // The earliest timestamp.
        Cel::Timestamp(time) => time.timestamp() == -62_135_596_800 && time.timestamp_subsec_nanos() == 0,
        value => value.is_zero(),
    }
}

/// Returns the values of the optionals that have one.
fn unwrap(list: &Cel) -> Outcome {
    let Cel::List(items) = list else { return Err(ExecutionError::NoSuchOverload) };
    charge_or_fail(items.len() as u64)?;
    let values = items.iter().map(value_of).filter_map(Result::transpose).map(|value| value.cloned());
    Ok(Cel::List(Arc::new(values.collect::<Result<_, _>>()?)))
}
