//! Keys of bindings.

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;

use crate::Error;
use crate::runtime::context::Context;

/// Returns the key of the binding that refers to an object, or of the binding to create. Bindings keep their names: the
/// first object gets the usual name, and another object with the same usual name has a distinct name, even after the
/// first one is deleted. Fails if bindings of other objects have both names, since the hash in the distinct name can
/// collide.
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
        _ => Err(Error::Other(format!(
            "cannot create a binding for {object}: the names {:?} and {:?} are used by bindings of other objects; rename the \
             object",
            usual.name, distinct.name
        ))),
    }
}

/// Returns true if a binding refers to an object. `None` if the binding does not exist.
async fn is_bound(context: &Context, object: &ObjectIdentity<'_>, key: &BindingKey) -> Result<Option<bool>, Error> {
    let binding = context.get_redacted(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?;
    Ok(binding.map(|binding| object.is_template_of(binding.view())))
}
