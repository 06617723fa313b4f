//! Create requests.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::apply;
use rand::Rng;
use serde_json::Value;

use crate::admission::{Attributes, Operation};
use crate::error::Error;
use crate::object::{Object, time};
use crate::resource::ResourceRef;
use crate::storage::{Expect, ObjectKey, Write};
use crate::strategy::RequestContext;
use crate::{Registry, invalid, invalid_object, table, unexpected, validation, write_error};
use crowsnest_apimachinery::request::options::WriteOptions;

/// Longest base of a generated name: 63 minus five random characters.
const BASE: usize = 58;
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Attempts to generate a name that is not in use.
const TRIES: usize = 8;

/// Context of a create.
#[derive(Clone, Copy)]
pub(crate) struct Creation<'c> {
    pub(crate) resource: &'c ResourceRef,
    pub(crate) ctx: &'c RequestContext,
    pub(crate) options: &'c WriteOptions,
    /// True if server-side apply has already set the managedFields.
    pub(crate) tracked: bool,
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
        self.create_tracked(Creation { resource, ctx, options, tracked: false }, object, warnings).await
    }

    pub(crate) async fn create_tracked(
        &self,
        creation: Creation<'_>,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let Creation { resource, ctx, options, tracked } = creation;
        begin(resource, ctx, &mut object, options, warnings, tracked)?;
        let generated = object.name().is_empty() && !object.meta_text("generateName").is_empty();
        if !generated {
            return self.create_named(creation, object, warnings).await;
        }
        let base: String = object.meta_text("generateName").chars().take(BASE).collect();
        for attempt in 0.. {
            let mut candidate = object.clone();
            candidate.metadata_mut().insert("name".into(), generate_name(&base).into());
            match self.create_named(creation, candidate, warnings).await {
                Err(error)
                    if attempt + 1 < TRIES && error.is(crowsnest_apimachinery::status::Reason::AlreadyExists) => {}
                other => return other,
            }
        }
        Err(ApiError::internal("no free name"))
    }

    async fn create_named(
        &self,
        Creation { resource, ctx, options, tracked }: Creation<'_>,
        mut object: Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Value> {
        let requested_name = object.name().to_owned();
        if let Some(why) = resource.strategy.refuses_create() {
            return Err(ApiError::forbidden(&resource.gvr.group, &resource.gvr.resource, &requested_name, why));
        }
        let attributes = Attributes::new(ctx, resource, Operation::Create, &requested_name, &options.raw);
        self.mutate(&attributes, Some(&mut object), warnings).await?;
        resource.strategy.default_admitted(&mut object);
        // Admission may have changed these.
        dedup_owners(&mut object, true, warnings);
        set_namespace(&mut object, &ctx.namespace)?;
        self.before_create(resource, ctx, &mut object, warnings)?;
        let name = object.name().to_owned();
        self.validate(&attributes, Some(&object), warnings).await?;
        let key = ObjectKey::new(if resource.namespaced { &ctx.namespace } else { "" }, &name);
        if ctx.dry_run {
            return match self.store.get(&table(resource), &key) {
                Some(_) => Err(self.taken(resource, &key)),
                None => self.as_if_stored(resource, object).await,
            };
        }
        if !object.resource_version().is_empty() {
            // Server-side apply ignores it: kube-apiserver checks versions of existing objects only.
            if !tracked {
                return Err(unexpected("resourceVersion should not be set on objects to be created"));
            }
            object.metadata_mut().remove("resourceVersion");
        }
        let body = self.encode(resource, &object).await?;
        let write =
            Write { table: table(resource), key: key.clone(), expect: Expect::Absent, body: Some(body.clone()) };
        match self.store.write(write).await {
            Ok(revision) => self.as_stored(resource, key, object, body, revision).await,
            Err(error) => {
                if let Some(allocators) = self.allocators(resource) {
                    allocators.release(&object);
                }
                Err(match error {
                    Error::Exists => self.taken(resource, &key),
                    error => write_error(resource, &name, error),
                })
            }
        }
    }

    /// Error for a name in use; mentions if the existing object is being deleted.
    fn taken(&self, resource: &ResourceRef, key: &ObjectKey) -> ApiError {
        let mut error = write_error(resource, key.name(), Error::Exists);
        if self.store.object(&table(resource), key).is_some_and(|object| object.is_deleting()) {
            error.message = format!("object is being deleted: {}", error.message);
        }
        error
    }

    /// `rest.BeforeCreate` with the allocations around it.
    fn before_create(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let metadata = object.metadata_mut();
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            metadata.remove(key);
        }
        metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".into(), time(ctx.now).into());
        resource.strategy.prepare_create(ctx, object);
        let name = object.name().to_owned();
        let allocators = self.allocators(resource);
        if let Some(allocators) = &allocators {
            allocators.allocate(ctx, None, object).or_else(|errors| invalid(resource, &name, errors))?;
        }
        let strategy = &resource.strategy;
        let mut errors = object.metadata().map_or_else(Vec::new, |m| {
            validation::object_meta(m, resource.namespaced, &|name, prefix| strategy.validate_name(name, prefix))
        });
        let own = strategy.validate_create(ctx, object);
        // Kinds without their own metadata validation report the generic errors last.
        if !own.is_empty() && !strategy.validates_metadata() {
            errors.clear();
        }
        errors.extend(own);
        if let Err(error) = invalid_object(resource, object, errors) {
            if let Some(allocators) = allocators {
                allocators.release(object);
            }
            return Err(error);
        }
        warnings.extend(strategy.warnings(ctx, None, object));
        Ok(())
    }
}

/// The field manager of this write.
pub(crate) fn manager<'a>(
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
    let suffix = (0..5).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    base.chars().chain(suffix).collect()
}

/// Prepares the metadata of an object that is created or evaluated as a review.
pub fn begin(
    resource: &ResourceRef,
    ctx: &RequestContext,
    object: &mut Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
    tracked: bool,
) -> ApiResult<()> {
    set_namespace(object, &ctx.namespace)?;
    dedup_owners(object, tracked, warnings);
    let api_version = resource.gvr.api_version();
    if !tracked {
        let schema = resource.strategy.schema();
        let manager = manager(resource, ctx, options, &api_version);
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
    let given = object.namespace().to_owned();
    if namespace.is_empty() {
        object.metadata_mut().remove("namespace");
    } else if given.is_empty() {
        object.metadata_mut().insert("namespace".into(), namespace.into());
    } else if given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Removes duplicate owner references with a warning, as apiserver does. Those in patches are checked after
/// admission only.
pub(crate) fn dedup_owners(object: &mut Value, patched: bool, warnings: &mut Vec<String>) {
    let Some(owners) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut) else { return };
    let mut seen: Vec<Value> = Vec::new();
    let mut repeated: Vec<String> = Vec::new();
    owners.retain(|owner| {
        let new = !seen.contains(owner);
        let uid = owner["uid"].as_str().unwrap_or_default();
        if new {
            seen.push(owner.clone());
        } else {
            repeated.push(uid.to_owned());
        }
        new
    });
    if !repeated.is_empty() {
        let when = if patched { " after mutating admission happens" } else { "" };
        warnings.push(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            repeated.join(", ")
        ));
    }
}
