//! Update and patch requests: a loop of read, change, check, and write by compare-and-swap.

use std::sync::Weak;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::apply;
use serde_json::Value;

use crate::admission::{Attributes, Operation};
use crate::change::Change;
use crate::create::{Creation, check_namespace, deduplicate_owners, field_manager, set_namespace};
use crate::error::Error;
use crate::object::{Object, parse_object_version};
use crate::patch::{Patch, run_with_conversions};
use crate::resource::ResourceRef;
use crate::storage::{Precondition, Record, Write};
use crate::strategy::RequestContext;
use crate::{
    MODIFIED_MESSAGE, Registry, error_without_reason, reject_invalid, reject_invalid_object, scale, storage_error,
    table, validation, write_error,
};
use crowsnest_apimachinery::request::options::WriteOptions;

/// Maximum number of attempts when other writes cause conflicts.
const MAX_ATTEMPTS: usize = 16;

/// Authorizes updates and patches that create an object.
pub trait CreateAuthorizer: Send + Sync {
    /// Rejects users without the permission to create the object.
    fn authorize_create(&self, resource: &ResourceRef, ctx: &RequestContext, name: &str) -> ApiResult<()>;
}

/// An update of the object with this name.
#[derive(Clone, Copy)]
struct Update<'u> {
    resource: &'u ResourceRef,
    ctx: &'u RequestContext,
    name: &'u str,
    change: &'u Change,
    options: &'u WriteOptions,
}

/// Result of one attempt.
enum Attempt {
    Done(Value),
    /// Another write changed the object in the meantime.
    Conflict,
}

impl Registry {
    /// Updates an object; the flag is true if it was created. `name` is the name in the path.
    pub async fn update(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        name: &str,
        change: &Change,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<(Value, bool)> {
        let update = Update { resource, ctx, name, change, options };
        check_identity(update, change)?;
        for _ in 0..MAX_ATTEMPTS {
            let record = match self.record(resource, &ctx.namespace, name) {
                Ok(record) => record,
                Err(absent) => match self.new_object(update, warnings).await? {
                    Some(object) => {
                        let creation =
                            Creation { resource, ctx, options, has_managed_fields: matches!(change, Change::Patch(_)) };
                        match self.create_object(creation, object, warnings).await {
                            // A concurrent request created the object: continue as an update.
                            Err(error) if error.is(crowsnest_apimachinery::status::Reason::AlreadyExists) => continue,
                            other => return other.map(|object| (object, true)),
                        }
                    }
                    None => return Err(absent),
                },
            };
            let mut attempt_warnings = Vec::new();
            let attempt = self.update_once(update, record, &mut attempt_warnings).await;
            // Rejected requests return warnings as well.
            if !matches!(attempt, Ok(Attempt::Conflict)) {
                warnings.append(&mut attempt_warnings);
            }
            if let Attempt::Done(object) = attempt? {
                return Ok((object, false));
            }
        }
        Err(write_error(resource, name, Error::Conflict { current: 0 }))
    }

    /// Refuses a create by update or patch to users who may only update or patch, as `withAuthorization` of
    /// k8s.io/apiserver does.
    fn check_create_right(&self, resource: &ResourceRef, ctx: &RequestContext, name: &str) -> ApiResult<()> {
        if ctx.user.is_master() {
            return Ok(());
        }
        match self.create_authorizer.get().and_then(Weak::upgrade) {
            Some(authorizer) => authorizer.authorize_create(resource, ctx, name),
            None => Err(ApiError::internal("no authorizer provided, unable to authorize a create on update")),
        }
    }

    /// The object to create if it is missing: for server-side apply, and for kinds that allow it on PUT.
    async fn new_object(&self, update: Update<'_>, warnings: &mut Vec<String>) -> ApiResult<Option<Value>> {
        let Update { resource, ctx, name, change, options } = update;
        if !ctx.subresource.is_empty() {
            return Ok(None);
        }
        let object = match change {
            Change::Replace(object) if resource.strategy.allow_create_on_update() => {
                let mut object = object.clone();
                check_name(&object, name)?;
                // As in kube-apiserver, the version of a missing object is not compared.
                parse_object_version(&object)?;
                object.metadata_mut().remove("resourceVersion");
                object
            }
            Change::Patch(patch) if patch.creates_missing() => {
                let object = patch.apply(resource, ctx, None, options, warnings).await?;
                if !object.uid().is_empty() {
                    let reason = format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        object.uid()
                    );
                    return Err(ApiError::conflict(&resource.gvr.group, &resource.gvr.resource, name, reason));
                }
                check_name(&object, name)?;
                parse_object_version(&object)?;
                object
            }
            _ => return Ok(None),
        };
        self.check_create_right(resource, ctx, name)?;
        Ok(Some(object))
    }

    async fn update_once(&self, update: Update<'_>, record: Record, warnings: &mut Vec<String>) -> ApiResult<Attempt> {
        let Update { resource, ctx, name, change, options } = update;
        let revision = record.revision;
        let stored = record.body.clone();
        let live = self.decode(resource, record).await?;
        let (mut new, has_managed_fields) = change.apply_to(resource, ctx, &live, options, warnings).await?;
        set_namespace(&mut new, if resource.namespaced { &ctx.namespace } else { "" })?;
        check_name(&new, name)?;
        check_uid(update, &live, &new)?;
        let is_patch = matches!(change, Change::Patch(_));
        if !is_patch {
            deduplicate_owners(&mut new, false, warnings);
        }
        if !has_managed_fields {
            let schema = resource.strategy.schema();
            let api_version = resource.gvr.api_version();
            let manager = field_manager(resource, ctx, options, &api_version);
            let managed_fields = run_with_conversions(&resource.strategy, |versions| {
                apply::track_update(versions, schema.as_deref(), &live, &new, &manager)
            });
            // If the fields of some managers cannot be computed, the managedFields of all are dropped.
            let managed_fields = managed_fields.await.unwrap_or_else(|error| {
                // Invalid requests cause this, so it is not logged as a warning.
                tracing::debug!(%error, kind = %resource.kind, name, "dropping managedFields");
                apply::PendingManagedFields::default()
            });
            managed_fields.write(&mut new);
        }
        let scaled = match change {
            Change::Scale(_) => resource.scale.as_ref().map(|paths| (paths, scale::from_parent(paths, &live))),
            _ => None,
        };
        let old = Some(scaled.as_ref().map_or(&live, |(_, old)| old));
        let attributes = Attributes { old, ..Attributes::new(ctx, resource, Operation::Update, name, &options.raw) };
        // Bindings and evictions have their own admission.
        let skips_admission = matches!(ctx.subresource.as_str(), "binding" | "eviction");
        match &scaled {
            Some((paths, _)) => {
                let mut scale = scale::from_parent(paths, &new);
                self.mutate(&attributes, Some(&mut scale), warnings).await?;
                scale::set_replicas(paths, &mut new, &scale);
            }
            None if skips_admission => {}
            None => self.mutate(&attributes, Some(&mut new), warnings).await?,
        }
        if is_patch {
            deduplicate_owners(&mut new, true, warnings);
        }
        check_resource_version(resource, name, change, &live, &new)?;
        // An applied configuration that changes nothing has the live object as its result, without further defaults.
        let is_applied = matches!(change, Change::Patch(Patch::Apply(_)));
        if !(is_applied && apply::only_managers_differ(&live, &new)) {
            resource.strategy.default_admitted(&mut new);
        }
        set_namespace(&mut new, if resource.namespaced { &ctx.namespace } else { "" })?;
        self.before_update(resource, ctx, &live, &mut new, warnings)?;
        let scale = scaled.as_ref().map(|(paths, _)| scale::from_parent(paths, &new));
        if !skips_admission {
            self.validate(&attributes, Some(scale.as_ref().unwrap_or(&new)), warnings).await?;
        }
        new.metadata_mut().insert("resourceVersion".into(), live.resource_version().into());
        if apply::only_times_differ(&live, &new) {
            new.clone_from(&live);
        }
        if ctx.dry_run {
            return self.read_back_unwritten(resource, new).await.map(Attempt::Done);
        }
        let body = self.encode(resource, &new).await?;
        if body.is_same_object(&stored) {
            return self.read_back_unwritten(resource, new).await.map(Attempt::Done);
        }
        let is_removed = is_ready_for_removal(resource, &new);
        let key = crate::storage::ObjectKey::new(if resource.namespaced { &ctx.namespace } else { "" }, name);
        let new_body = (!is_removed).then(|| body.clone());
        let write = Write {
            table: table(resource),
            key: key.clone(),
            precondition: Precondition::Revision(revision),
            body: new_body,
        };
        match self.store.write(write).await {
            Ok(revision) => {
                if let Some(allocators) = self.allocators(resource) {
                    if is_removed { allocators.release(&live) } else { allocators.release_replaced(&live, &new) }
                }
                // An update that completes a deletion returns the object with its previous resourceVersion.
                if is_removed {
                    return Ok(Attempt::Done(new));
                }
                self.read_back(resource, key, new, body, revision).await.map(Attempt::Done)
            }
            Err(error) => {
                if let Some(allocators) = self.allocators(resource) {
                    allocators.release_replaced(&new, &live);
                }
                match error {
                    Error::Conflict { .. } if !change.requires_version() => Ok(Attempt::Conflict),
                    error => Err(write_error(resource, name, error)),
                }
            }
        }
    }

    /// `rest.BeforeUpdate`, with the allocations of cluster IPs and node ports.
    fn before_update(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        live: &Value,
        new: &mut Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let strategy = &resource.strategy;
        restore_immutable_metadata(ctx, live, new);
        strategy.prepare_update(ctx, live, new);
        let name = live.name();
        if let Some(allocators) = self.allocators(resource) {
            allocators.allocate(ctx, Some(live), new).or_else(|errors| reject_invalid(resource, name, errors))?;
        }
        let mut errors = Vec::new();
        // A custom resource's own validation skips the metadata of an object of another kind or version.
        let is_own_type = !resource.is_custom()
            || (new["kind"] == resource.kind.as_str() && new["apiVersion"] == resource.gvr.api_version().as_str());
        if let (Some(new), Some(old)) = (new.metadata(), live.metadata()) {
            errors.extend(validation::validate_common_object_meta(new, resource.namespaced));
            // kube-apiserver checks metadata changes once for all kinds and again in the kind's own validation.
            errors.extend(validation::validate_object_meta_update(new, old));
            if strategy.validates_metadata() && is_own_type {
                errors.extend(validation::validate_object_meta_update(new, old));
            }
        }
        let found = strategy.validate_update(ctx, live, new);
        errors.extend(found.errors);
        warnings.extend(found.tolerated);
        if let Err(error) = reject_invalid_object(resource, new, errors) {
            if let Some(allocators) = self.allocators(resource) {
                allocators.release_replaced(new, live);
            }
            return Err(error);
        }
        warnings.extend(strategy.warnings(ctx, Some(live), new));
        Ok(())
    }

    /// Replaces an object that the server itself maintains, without admission; `None` on a conflict.
    pub async fn replace_raw(&self, resource: &ResourceRef, object: &Value) -> ApiResult<Option<Value>> {
        let revision =
            object.resource_version().parse().map_err(|_| error_without_reason("object without resourceVersion"))?;
        let key =
            crate::storage::ObjectKey::new(if resource.namespaced { object.namespace() } else { "" }, object.name());
        let body = self.encode(resource, object).await?;
        let body = (!is_ready_for_removal(resource, object)).then_some(body);
        let write = Write { table: table(resource), key, precondition: Precondition::Revision(revision), body };
        match self.store.write(write).await {
            Ok(revision) => {
                let mut object = object.clone();
                object.metadata_mut().insert("resourceVersion".into(), revision.to_string().into());
                Ok(Some(object))
            }
            Err(Error::Conflict { .. } | Error::NotFound) => Ok(None),
            Err(error) => Err(storage_error(error)),
        }
    }
}

/// Checks namespace and name of a replacement, before the object is looked up.
fn check_identity(update: Update<'_>, change: &Change) -> ApiResult<()> {
    match change {
        Change::Replace(object) => {
            check_namespace(object, if update.resource.namespaced { &update.ctx.namespace } else { "" })?;
            check_name(object, update.name)
        }
        Change::Scale(change) => check_identity(update, change),
        Change::Patch(_) | Change::Edit(_) => Ok(()),
    }
}

/// Requires the name in the path of the request.
pub(crate) fn check_name(object: &Value, name: &str) -> ApiResult<()> {
    let object_name = object.name();
    if object_name.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if object_name != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({object_name}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

/// Checks the UID of a PUT as a precondition.
fn check_uid(update: Update<'_>, live: &Value, new: &Value) -> ApiResult<()> {
    let Update { resource, ctx, name, change, .. } = update;
    let (group, plural) = (&resource.gvr.group, &resource.gvr.resource);
    if matches!(change, Change::Replace(_)) && !new.uid().is_empty() && new.uid() != live.uid() {
        let registry = if group.is_empty() { plural.to_string() } else { format!("{group}/{plural}") };
        let key = crate::storage::ObjectKey::new(live.namespace(), name);
        let reason = format!(
            "StorageError: invalid object, Code: 4, Key: {}/{registry}/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {}, UID in object meta: {}",
            // A dry run does not reach etcd, whose client adds the prefix.
            if ctx.dry_run { "" } else { "/registry" },
            new.uid(),
            live.uid()
        );
        return Err(ApiError::conflict(group, plural, name, reason));
    }
    Ok(())
}

/// Checks the resourceVersion as a precondition; some kinds require it for a PUT.
fn check_resource_version(
    resource: &ResourceRef,
    name: &str,
    change: &Change,
    live: &Value,
    new: &Value,
) -> ApiResult<()> {
    let (group, plural) = (&resource.gvr.group, &resource.gvr.resource);
    let version = parse_object_version(new)?;
    if version == 0 {
        if matches!(change, Change::Replace(_)) && !resource.strategy.allow_unconditional_update() {
            let error = FieldError::new(
                FieldErrorKind::Invalid,
                "metadata.resourceVersion",
                Some("0".into()),
                "must be specified for an update",
            );
            return Err(ApiError::invalid(group, plural, name, vec![error]));
        }
        return Ok(());
    }
    if version.to_string() != live.resource_version() {
        return Err(ApiError::conflict(group, plural, name, MODIFIED_MESSAGE));
    }
    Ok(())
}

/// Restores metadata that updates cannot change from the live object. A given grace period, and a given time of
/// deletion if the live object has none, are left as they are: validation rejects a change unless the kind's strategy
/// restores them.
fn restore_immutable_metadata(ctx: &RequestContext, live: &Value, new: &mut Value) {
    let Some(old) = live.metadata() else { return };
    let metadata = new.metadata_mut();
    // kube-apiserver removes it when it encodes the object for etcd, which a dry run does not reach.
    if !ctx.dry_run {
        metadata.remove("selfLink");
    }
    for key in ["creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let is_given = metadata.get(key).is_some_and(|value| !value.is_null());
        match old.get(key) {
            Some(_) if is_given && key == "deletionGracePeriodSeconds" => {}
            Some(value) => drop(metadata.insert(key.into(), value.clone())),
            None if is_given && key.starts_with("deletion") => {}
            None => drop(metadata.remove(key)),
        }
    }
    let has_uid = metadata.get("uid").is_some_and(|uid| !uid.is_null() && uid.as_str() != Some(""));
    if !has_uid && let Some(uid) = old.get("uid") {
        metadata.insert("uid".into(), uid.clone());
    }
}

/// True if the object is marked for deletion and no finalizer or grace period remains.
pub(crate) fn is_ready_for_removal(resource: &ResourceRef, object: &Value) -> bool {
    object.is_deleting()
        && object.finalizers().is_empty()
        && object.grace_period_seconds().unwrap_or(0) == 0
        && (&*resource.gvr.resource != "namespaces"
            || !resource.gvr.group.is_empty()
            || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty))
}
