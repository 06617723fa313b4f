//! Templates of bindings.

use std::sync::Arc;

use crowsnest_apimachinery::unstructured;
use crowsnest_plan::reference;
use serde_json::Value;

use crate::Error;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::{Resource, Target};

/// Reads the template of a binding, including Secret data. `None` if it does not exist, or if the binding must not
/// refer to it ([`reference::check`]).
pub async fn template_of(context: &Context, binding: &Value) -> Result<Option<(Resource, Arc<Value>)>, Error> {
    let reference: crowsnest_api::work::ObjectReference =
        decode(unstructured::at(binding, &["spec", "resource"]).unwrap_or(&Value::Null))?;
    let resource = match context.rest_mapper.find(&context.control_plane, &reference.api_version, &reference.kind).await
    {
        Ok(resource) => resource,
        Err(Error::UnknownKind { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if let Err(error) = reference::check(unstructured::namespace(binding), &reference, resource.namespaced) {
        tracing::warn!(namespace = unstructured::namespace(binding), binding = unstructured::name(binding), reason = %error, "ignoring a binding with an invalid reference");
        return Ok(None);
    }
    if context.cache.is_synced(&context.control_plane, &resource.gvr) {
        let template = context.get_full(&resource, &reference.namespace, &reference.name).await?;
        return Ok(template.map(|template| (resource, template)));
    }
    let live = context.objects.get(Target::new(&resource, &reference.namespace, &reference.name)).await?;
    Ok(live.map(|template| (resource, Arc::new(template))))
}
