//! Optionals where the crate's differ: what counts as nothing, lists of them, and whether two are equal.
//!
//! The crate drops an optional when it copies it, as it does with elements that a loop goes through. So they are held in lists as
//! something that it does not know, which [`super::weave`] sees to.

use std::sync::Arc;

use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::{Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::functions::spend;

/// An optional as an element of a list.
pub(super) const HELD: &str = "@held";
/// The optional that an element is.
pub(super) const FREED: &str = "@freed";
/// An optional of a stored value: of lists and maps even if they are empty.
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

/// What an optional has, held or not.
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
        // The first instant that there is.
        Cel::Timestamp(time) => time.timestamp() == -62_135_596_800 && time.timestamp_subsec_nanos() == 0,
        of => of.is_zero(),
    }
}

/// What those have that have something.
fn unwrap(list: &Cel) -> Outcome {
    let Cel::List(items) = list else { return Err(ExecutionError::NoSuchOverload) };
    spend(items.len() as u64)?;
    let values = items.iter().map(value).filter_map(Result::transpose).map(|one| one.cloned());
    Ok(Cel::List(Arc::new(values.collect::<Result<_, _>>()?)))
}
