//! Names of bindings.

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;

use crate::Error;
use crate::runtime::context::Context;

/// Key of the binding that refers to an object, or of the one to create if there is none. Bindings keep their names:
/// the first object with a usual name keeps it, and another object has a distinct name even after the first is
/// deleted.
pub async fn binding_key_of(context: &Context, object: &ObjectIdentity<'_>) -> Result<BindingKey, Error> {
    let usual = object.usual_binding_key();
    let is_usual_taken = match is_bound(context, object, &usual).await? {
        Some(true) => return Ok(usual),
        Some(false) => true,
        None => false,
    };
    let distinct = object.distinct_binding_key();
    match is_bound(context, object, &distinct).await? {
        Some(true) => Ok(distinct),
        None if is_usual_taken => Ok(distinct),
        _ if !is_usual_taken => Ok(usual),
        _ => Err(Error::Apply(format!(
            "cannot name a binding: {:?} and {:?} belong to other objects",
            usual.name, distinct.name
        ))),
    }
}

/// Returns true if a binding refers to an object. `None` if the binding does not exist.
async fn is_bound(context: &Context, object: &ObjectIdentity<'_>, key: &BindingKey) -> Result<Option<bool>, Error> {
    let binding = context.get_redacted(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?;
    Ok(binding.map(|binding| object.is_template_of(binding.view())))
}
