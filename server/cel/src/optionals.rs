//! Corrections of the crate's optionals: zero values, optionals in lists, and equality.
//!
//! The crate loses optionals when it copies values, such as loop elements. They are therefore wrapped in an opaque
//! value inside lists; see [`super::rewrite`].

use std::sync::Arc;

use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::{Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::functions::spend;

/// Wraps an optional as a list element.
pub(super) const HELD: &str = "@held";
/// Unwraps a list element to an optional.
pub(super) const FREED: &str = "@freed";
/// An optional of a stored value, which is present even for empty lists and maps.
pub(super) const OF_STORED: &str = "@of_stored";

type Outcome = Result<Cel, ExecutionError>;

#[derive(Debug, PartialEq, Eq)]
struct Held(Option<Cel>);

impl Opaque for Held {
    fn runtime_type_name(&self) -> &str {
        "optional_type"
    }
}

pub(super) fn add(context: &mut Context<'_>) {
    context
        .add_function(HELD, |optional: Cel| -> Outcome { Ok(Cel::Opaque(Arc::new(Held(value(&optional)?.cloned())))) });
    context.add_function(FREED, |held: Cel| -> Outcome { Ok(optional(value(&held)?.cloned())) });
    context.add_function(OF_STORED, |value: Cel| -> Outcome {
        let stored = matches!(value, Cel::List(_) | Cel::Map(_));
        Ok(optional(Some(value).filter(|value| stored || !is_nothing(value))))
    });
    context.add_function("optional.ofNonZeroValue", |value: Cel| -> Outcome {
        Ok(optional(Some(value).filter(|value| !is_nothing(value))))
    });
    context.add_function("optional.unwrap", |list: Cel| unwrap(&list));
    context.add_function("unwrapOpt", |This(list): This<Cel>| unwrap(&list));
}

fn optional(value: Option<Cel>) -> Cel {
    Cel::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// The value of a wrapped or unwrapped optional.
fn value(of: &Cel) -> Result<Option<&Cel>, ExecutionError> {
    let Cel::Opaque(opaque) = of else { return Err(ExecutionError::NoSuchOverload) };
    match (opaque.downcast_ref::<OptionalValue>(), opaque.downcast_ref::<Held>()) {
        (Some(optional), _) => Ok(optional.value()),
        (_, Some(Held(value))) => Ok(value.as_ref()),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn is_nothing(of: &Cel) -> bool {
    match of {
        // The earliest timestamp.
        Cel::Timestamp(time) => time.timestamp() == -62_135_596_800 && time.timestamp_subsec_nanos() == 0,
        of => of.is_zero(),
    }
}

/// The values of the optionals that are present.
fn unwrap(list: &Cel) -> Outcome {
    let Cel::List(items) = list else { return Err(ExecutionError::NoSuchOverload) };
    spend(items.len() as u64)?;
    let values = items.iter().map(value).filter_map(Result::transpose).map(|one| one.cloned());
    Ok(Cel::List(Arc::new(values.collect::<Result<_, _>>()?)))
}
