//! Requested changes of an object, and their application to the live object.

use std::sync::Arc;

use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::apply::{self, Apply, ReplicasPath};
use serde_json::Value;

use crate::create::{field_manager, set_namespace};
use crate::object::Object;
use crate::patch::{Patch, run_with_conversions};
use crate::resource::ResourceRef;
use crate::scale;
use crate::strategy::RequestContext;
use crate::update::check_name;

/// Requested change of an object.
#[derive(Debug, Clone)]
pub enum Change {
    /// PUT with the complete object.
    Replace(Value),
    Patch(Patch),
    /// A write through the scale subresource.
    Scale(Box<Change>),
    /// A change made by the server itself.
    Edit(Edit),
}

/// Changes an object in place, or returns an error.
pub type EditFn = dyn Fn(&mut Value) -> ApiResult<()> + Send + Sync;

/// A pure change of the live object.
#[derive(Clone)]
pub struct Edit(pub Arc<EditFn>);

impl std::fmt::Debug for Edit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Edit")
    }
}

impl Change {
    /// Applies the change to the live object; the flag is true if the managedFields of the result are set.
    pub(crate) async fn apply_to(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        live: &Value,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<(Value, bool)> {
        match self {
            Change::Replace(object) => Ok((object.clone(), false)),
            Change::Patch(patch) => {
                Ok((patch.apply(resource, ctx, Some(live), options, warnings).await?, patch.creates_missing()))
            }
            Change::Edit(edit) => {
                let mut object = live.clone();
                (edit.0)(&mut object)?;
                // Changes of a pod by a binding or an eviction have no field manager.
                Ok((object, matches!(ctx.subresource.as_str(), "binding" | "eviction")))
            }
            Change::Scale(change) => {
                let paths = resource.scale.as_ref().ok_or_else(ApiError::unknown_resource)?;
                let mut current = scale::from_parent(paths, live);
                if !scale::has_replicas(paths, live) {
                    current["spec"]["replicas"] = scale::UNSET_REPLICAS.into();
                }
                let api_version = resource.gvr.api_version();
                let path_in = |version: &str| {
                    if version == api_version {
                        ReplicasPath::At(&paths.spec_replicas)
                    } else {
                        resource.strategy.replicas_path(version)
                    }
                };
                apply::scale::set_managers(&mut current, live, path_in);
                let mut scale = match change.as_ref() {
                    Change::Patch(patch) => patch.apply_to_scale(&current, options, warnings)?,
                    Change::Replace(scale) => scale.clone(),
                    _ => return Err(ApiError::method_not_allowed()),
                };
                if scale["spec"]["replicas"] == scale::UNSET_REPLICAS {
                    let path = &paths.spec_replicas;
                    return Err(ApiError::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
                }
                set_namespace(&mut scale, live.namespace())?;
                check_name(&scale, live.name())?;
                let mut parent = scale::apply_to_parent(resource, paths, live, &scale)?;
                let manager = field_manager(resource, ctx, options, &api_version);
                if let Change::Patch(Patch::Apply(config)) = change.as_ref() {
                    let config = scale::to_parent_config(resource, paths, &config.value);
                    let schema = resource.strategy.schema();
                    let applied = run_with_conversions(&resource.strategy, |versions| {
                        Apply {
                            versions,
                            schema: schema.as_deref(),
                            live: Some(live),
                            config: &config,
                            manager: &manager,
                            force: options.force,
                        }
                        .run()
                    });
                    return Ok((
                        applied.await.map_err(|error| scale::reword_conflict(error, paths, &api_version))?,
                        true,
                    ));
                }
                let replicas = |scale: &Value| scale["spec"]["replicas"].as_i64().filter(|replicas| *replicas != 0);
                apply::scale::update_replica_managers(
                    &mut parent,
                    &manager,
                    path_in,
                    (replicas(&current), replicas(&scale)),
                );
                Ok((parent, true))
            }
        }
    }

    /// True if the change is bound to a resourceVersion, so that a conflict is returned to the client.
    pub(crate) fn requires_version(&self) -> bool {
        match self {
            Change::Replace(object) => !object.resource_version().is_empty(),
            Change::Patch(patch) => patch.has_resource_version(),
            Change::Scale(change) => change.requires_version(),
            Change::Edit(_) => false,
        }
    }
}
