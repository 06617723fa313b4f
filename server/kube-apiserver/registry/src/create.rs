//! Create requests.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::apply;
use rand::Rng;
use serde_json::Value;

use crate::admission::{Attributes, Operation};
use crate::error::Error;
use crate::object::{Object, format_time, parse_object_version};
use crate::resource::ResourceRef;
use crate::storage::{ObjectKey, Precondition, Write};
use crate::strategy::RequestContext;
use crate::{Registry, error_without_reason, reject_invalid, reject_invalid_object, table, validation, write_error};
use crowsnest_apimachinery::request::options::WriteOptions;

/// Maximum length of the base of a generated name: 63 minus five random characters.
const MAX_BASE_LENGTH: usize = 58;
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Attempts to generate a name that is not in use.
const MAX_NAME_ATTEMPTS: usize = 8;

/// Context of a create.
#[derive(Clone, Copy)]
pub(crate) struct Creation<'c> {
    pub(crate) resource: &'c ResourceRef,
    pub(crate) ctx: &'c RequestContext,
    pub(crate) options: &'c WriteOptions,
    /// True if server-side apply has already set the managedFields.
    pub(crate) has_managed_fields: bool,
}

impl Registry {
    /// Stores a new object and returns it as stored.
    pub async fn create(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        object: Value,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        self.create_object(Creation { resource, ctx, options, has_managed_fields: false }, object, warnings).await
    }

    pub(crate) async fn create_object(
        &self,
        creation: Creation<'_>,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let Creation { resource, ctx, options, has_managed_fields } = creation;
        prepare_metadata(resource, ctx, &mut object, options, warnings, has_managed_fields)?;
        let needs_name = object.name().is_empty() && !object.meta_text("generateName").is_empty();
        if !needs_name {
            return self.create_named(creation, object, warnings).await;
        }
        let base: String = object.meta_text("generateName").chars().take(MAX_BASE_LENGTH).collect();
        for attempt in 0.. {
            let mut candidate = object.clone();
            candidate.metadata_mut().insert("name".into(), generate_name(&base).into());
            match self.create_named(creation, candidate, warnings).await {
                Err(error)
                    if attempt + 1 < MAX_NAME_ATTEMPTS
                        && error.is(crowsnest_apimachinery::status::Reason::AlreadyExists) => {}
                other => return other,
            }
        }
        Err(ApiError::internal("cannot generate a name that is not in use"))
    }

    async fn create_named(
        &self,
        Creation { resource, ctx, options, has_managed_fields }: Creation<'_>,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let requested_name = object.name().to_owned();
        if let Some(reason) = resource.strategy.create_refusal() {
            return Err(ApiError::forbidden(&resource.gvr.group, &resource.gvr.resource, &requested_name, reason));
        }
        let attributes = Attributes::new(ctx, resource, Operation::Create, &requested_name, &options.raw);
        self.mutate(&attributes, Some(&mut object), warnings).await?;
        resource.strategy.default_admitted(&mut object);
        // Admission may have changed these.
        deduplicate_owners(&mut object, true, warnings);
        set_namespace(&mut object, &ctx.namespace)?;
        self.before_create(resource, ctx, &mut object, warnings)?;
        let name = object.name().to_owned();
        self.validate(&attributes, Some(&object), warnings).await?;
        let key = ObjectKey::new(if resource.namespaced { &ctx.namespace } else { "" }, &name);
        if ctx.dry_run {
            return match self.store.get(&table(resource), &key) {
                Some(_) => Err(self.name_in_use_error(resource, &key)),
                None => self.read_back_unwritten(resource, object).await,
            };
        }
        if !object.resource_version().is_empty() {
            // Server-side apply ignores it: kube-apiserver checks versions of existing objects only. Text
            // that is not a version is ignored as well.
            let is_version = parse_object_version(&object).is_ok_and(|version| version > 0);
            if is_version && !has_managed_fields {
                return Err(error_without_reason("resourceVersion should not be set on objects to be created"));
            }
            object.metadata_mut().remove("resourceVersion");
        }
        let body = self.encode(resource, &object).await?;
        let write = Write {
            table: table(resource),
            key: key.clone(),
            precondition: Precondition::Absent,
            body: Some(body.clone()),
        };
        match self.store.write(write).await {
            Ok(revision) => self.read_back(resource, key, object, body, revision).await,
            Err(error) => {
                if let Some(allocators) = self.allocators(resource) {
                    allocators.release(&object);
                }
                Err(match error {
                    Error::AlreadyExists => self.name_in_use_error(resource, &key),
                    error => write_error(resource, &name, error),
                })
            }
        }
    }

    /// Error for a name in use; mentions whether the existing object is being deleted.
    fn name_in_use_error(&self, resource: &ResourceRef, key: &ObjectKey) -> ApiError {
        let mut error = write_error(resource, key.name(), Error::AlreadyExists);
        if self.store.object(&table(resource), key).is_some_and(|object| object.is_deleting()) {
            error.message = format!("object is being deleted: {}", error.message);
        }
        error
    }

    /// `rest.BeforeCreate`, with the allocations of cluster IPs and node ports.
    fn before_create(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        // Also removes what admission or server-side apply has set.
        remove_system_metadata(object);
        let metadata = object.metadata_mut();
        metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".into(), format_time(ctx.now).into());
        resource.strategy.prepare_create(ctx, object);
        let name = object.name().to_owned();
        let allocators = self.allocators(resource);
        if let Some(allocators) = &allocators {
            allocators.allocate(ctx, None, object).or_else(|errors| reject_invalid(resource, &name, errors))?;
        }
        let strategy = &resource.strategy;
        let mut errors = object.metadata().map_or_else(Vec::new, |m| {
            validation::validate_object_meta(m, resource.namespaced, &|name, prefix| {
                strategy.validate_name(name, prefix)
            })
        });
        let kind_errors = strategy.validate_create(ctx, object);
        // Without metadata validation of its own, a kind reports generic errors only if it finds no others.
        if !kind_errors.is_empty() && !strategy.validates_metadata() {
            errors.clear();
        }
        errors.extend(kind_errors);
        if let Err(error) = reject_invalid_object(resource, object, errors) {
            if let Some(allocators) = allocators {
                allocators.release(object);
            }
            return Err(error);
        }
        warnings.extend(strategy.warnings(ctx, None, object));
        Ok(())
    }
}

/// Removes metadata that clients cannot set.
fn remove_system_metadata(object: &mut Value) {
    let metadata = object.metadata_mut();
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(key);
    }
}

/// The field manager of this write.
pub(crate) fn field_manager<'a>(
    resource: &'a ResourceRef,
    ctx: &'a RequestContext,
    options: &'a WriteOptions,
    api_version: &'a str,
) -> apply::Manager<'a> {
    apply::Manager {
        name: &options.manager,
        subresource: &ctx.subresource,
        api_version,
        now: ctx.now,
        reset_fields: resource.strategy.reset_fields(&ctx.subresource),
    }
}

/// Appends five random characters to a base, as apiserver does for `generateName`.
pub fn generate_name(base: &str) -> String {
    let mut random = rand::rng();
    let suffix = (0..5).map(|_| char::from(SUFFIX_ALPHABET[random.random_range(0..SUFFIX_ALPHABET.len())]));
    base.chars().chain(suffix).collect()
}

/// Prepares the metadata of an object that is created, or evaluated as a review: namespace, owner references and
/// managedFields.
pub fn prepare_metadata(
    resource: &ResourceRef,
    ctx: &RequestContext,
    object: &mut Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
    has_managed_fields: bool,
) -> ApiResult<()> {
    set_namespace(object, &ctx.namespace)?;
    deduplicate_owners(object, has_managed_fields, warnings);
    if !has_managed_fields {
        // Removed before the owners of fields are computed, as by `WipeObjectMetaSystemFields`.
        remove_system_metadata(object);
    }
    let api_version = resource.gvr.api_version();
    if !has_managed_fields {
        let schema = resource.strategy.schema();
        let manager = field_manager(resource, ctx, options, &api_version);
        match resource.strategy.with_owned_defaults(object) {
            Some(mut owned) => {
                apply::track_create(schema.as_deref(), &mut owned, &manager);
                let managers = owned.metadata_mut().remove("managedFields");
                object.metadata_mut().extend(managers.map(|managers| ("managedFields".to_owned(), managers)));
            }
            None => apply::track_create(schema.as_deref(), object, &manager),
        }
    }
    Ok(())
}

/// `EnsureObjectNamespaceMatchesRequestNamespace`.
pub fn set_namespace(object: &mut Value, namespace: &str) -> ApiResult<()> {
    check_namespace(object, namespace)?;
    if namespace.is_empty() {
        object.metadata_mut().remove("namespace");
    } else if object.namespace().is_empty() {
        object.metadata_mut().insert("namespace".into(), namespace.into());
    }
    Ok(())
}

/// Rejects an object of another namespace than that of the request; both may be empty.
pub(crate) fn check_namespace(object: &Value, namespace: &str) -> ApiResult<()> {
    let object_namespace = object.namespace();
    if namespace.is_empty() || object_namespace.is_empty() || object_namespace == namespace {
        return Ok(());
    }
    Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request"))
}

/// Removes duplicate owner references with a warning, as apiserver does. `is_after_admission` selects the wording of the
/// warning; patches are checked after admission only, and so after their managedFields have been computed.
pub(crate) fn deduplicate_owners(object: &mut Value, is_after_admission: bool, warnings: &mut Vec<String>) {
    let Some(owners) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut) else { return };
    let mut seen: Vec<Value> = Vec::new();
    let mut repeated: Vec<String> = Vec::new();
    owners.retain(|owner| {
        let is_new = !seen.contains(owner);
        let uid = owner["uid"].as_str().unwrap_or_default();
        if is_new {
            seen.push(owner.clone());
        } else {
            repeated.push(uid.to_owned());
        }
        is_new
    });
    if !repeated.is_empty() {
        let when = if is_after_admission { " after mutating admission happens" } else { "" };
        warnings.push(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            repeated.join(", ")
        ));
    }
}
