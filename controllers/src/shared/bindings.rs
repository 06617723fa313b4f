//! Keys of bindings.

use crowsnest_api::keys::BindingKey;
use crowsnest_api::object_identity::ObjectIdentity;

use crate::Error;
use crate::runtime::context::Context;

/// Returns the key of the binding that refers to an object, or of the binding to create. Bindings keep their names: the
/// first object gets the default name, and another object with the same default name gets one with a hash suffix, even
/// after the first one is deleted. Fails if bindings of other objects have both names, since hashes can collide.
pub async fn binding_key_of(context: &Context, object: &ObjectIdentity<'_>) -> Result<BindingKey, Error> {
    let default = object.default_binding_key();
    let is_default_taken = match is_bound(context, object, &default).await? {
        Some(true) => return Ok(default),
        Some(false) => true,
        None => false,
    };
    let suffixed = object.hash_suffixed_binding_key();
    match is_bound(context, object, &suffixed).await? {
        Some(true) => Ok(suffixed),
        None if is_default_taken => Ok(suffixed),
        _ if !is_default_taken => Ok(default),
        _ => Err(Error::Other(format!(
            "cannot create a binding for {object}: the names {:?} and {:?} are used by bindings of other objects; rename the \
             object",
            default.name, suffixed.name
        ))),
    }
}

/// Returns true if a binding refers to an object. `None` if the binding does not exist.
async fn is_bound(context: &Context, object: &ObjectIdentity<'_>, key: &BindingKey) -> Result<Option<bool>, Error> {
    let binding = context.get_redacted(context.kinds.binding(key.scope()), &key.namespace, &key.name).await?;
    Ok(binding.map(|binding| object.is_template_of(binding.view())))
}
