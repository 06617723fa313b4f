//! Delete requests: graceful deletion, finalizers for dependents, and deletion of collections.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Value, json};

use crate::admission::{Attributes, Operation};
use crate::error::Error;
use crate::object::{Object, format_time};
use crate::resource::ResourceRef;
use crate::storage::{Body, ObjectKey, Precondition, Record, Revision, Write};
use crate::strategy::RequestContext;
use crate::{Registry, table, write_error};
use crowsnest_apimachinery::request::options::{
    DeleteOptions, DependentsPolicy, ListOptions, Preconditions, PropagationPolicy,
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// Default grace period of pods in seconds.
const DEFAULT_POD_GRACE_SECONDS: i64 = 30;

/// Outcome of a delete request.
#[derive(Debug, Clone, PartialEq)]
pub enum DeleteOutcome {
    /// The object is marked for deletion and waits for finalizers, its kubelet or its namespace's content.
    Pending(Value),
    /// The object has been removed; its last state.
    Removed(Value),
}

impl DeleteOutcome {
    pub fn object(&self) -> &Value {
        match self {
            DeleteOutcome::Pending(object) | DeleteOutcome::Removed(object) => object,
        }
    }
}

/// Next step of a delete, decided by [`decide`].
enum Decision {
    Keep,
    Mark(Value),
    /// Stores the deletion metadata, then removes the object: a grace period of zero.
    MarkAndRemove(Value),
    Remove,
}

impl Registry {
    pub async fn delete(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        name: &str,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<DeleteOutcome> {
        self.delete_object(resource, ctx, name, Some(name), options, warnings).await
    }

    /// Deletes a custom resource of a definition that is being deleted. Admission is skipped, as in Kubernetes: no
    /// policy or webhook can block the deletion of a definition.
    pub async fn delete_raw(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        name: &str,
    ) -> ApiResult<DeleteOutcome> {
        self.delete_object(resource, ctx, name, None, &DeleteOptions::default(), &mut Vec::new()).await
    }

    /// `requested_name` is the name in the request, empty for the deletion of a collection; `None` deletes without admission.
    async fn delete_object(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        name: &str,
        requested_name: Option<&str>,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<DeleteOutcome> {
        warnings.extend(propagation_warning(resource, options).map(str::to_owned));
        loop {
            let namespace = if resource.namespaced { ctx.namespace.as_str() } else { "" };
            let record = self.record(resource, namespace, name)?;
            let revision = record.revision;
            let live = self.decode(resource, Record { ..record }).await?;
            check_preconditions(&resource.gvr.group, &resource.kind, &options.preconditions, &live)?;
            // An eviction has passed admission itself.
            if let Some(requested_name) = requested_name.filter(|_| ctx.subresource != "eviction") {
                let attributes = Attributes::new(ctx, resource, Operation::Delete, requested_name, &options.raw);
                let attributes = Attributes { old: Some(&live), ..attributes };
                self.mutate(&attributes, None, warnings).await?;
                self.validate(&attributes, None, warnings).await?;
            }
            let mut marked = live.clone();
            if !live.is_deleting() {
                resource.strategy.prepare_delete(ctx, &mut marked);
            }
            let decision = decide(resource, ctx.now, options, &marked);
            if ctx.dry_run {
                return Ok(match decision {
                    Decision::Keep => DeleteOutcome::Pending(live),
                    Decision::Mark(object) => DeleteOutcome::Pending(object),
                    Decision::MarkAndRemove(object) => DeleteOutcome::Removed(object),
                    Decision::Remove => DeleteOutcome::Removed(live),
                });
            }
            let key = ObjectKey::new(namespace, name);
            let write = |revision: Revision, body: Option<Body>| {
                let write = Write {
                    table: table(resource),
                    key: key.clone(),
                    precondition: Precondition::Revision(revision),
                    body,
                };
                self.store.write(write)
            };
            let removal = match decision {
                Decision::Keep => return Ok(DeleteOutcome::Pending(live)),
                Decision::Mark(mut object) => {
                    let body = self.encode(resource, &object).await?;
                    write(revision, Some(body)).await.map(|revision| {
                        object.metadata_mut().insert("resourceVersion".into(), revision.to_string().into());
                        DeleteOutcome::Pending(object)
                    })
                }
                Decision::MarkAndRemove(object) => {
                    let body = self.encode(resource, &object).await?;
                    match write(revision, Some(body)).await {
                        Ok(revision) => write(revision, None).await.map(|_| DeleteOutcome::Removed(object)),
                        Err(error) => Err(error),
                    }
                }
                Decision::Remove => write(revision, None).await.map(|_| DeleteOutcome::Removed(live)),
            };
            match removal {
                Ok(deleted) => {
                    if let (DeleteOutcome::Removed(object), Some(allocators)) = (&deleted, self.allocators(resource)) {
                        allocators.release(object);
                    }
                    return Ok(deleted);
                }
                // The object has changed: retry, including the preconditions.
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(write_error(resource, name, error)),
            }
        }
    }

    /// Deletes all objects that a list with these options selects; returns them.
    pub async fn delete_collection(
        &self,
        resource: &ResourceRef,
        ctx: &RequestContext,
        list: &ListOptions,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Vec<Value>> {
        let listed = self.list(resource, &ctx.namespace, list).await?;
        let mut deleted = Vec::with_capacity(listed.objects.len());
        for object in listed.objects {
            let mut object_ctx = ctx.clone();
            if resource.namespaced {
                object_ctx.namespace = object.namespace().to_owned();
            }
            match self.delete_object(resource, &object_ctx, object.name(), Some(""), options, warnings).await {
                Ok(_) => deleted.push(object),
                Err(error) if error.is(crowsnest_apimachinery::status::Reason::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(deleted)
    }
}

/// Checks the preconditions of a delete; `kind` is used in the conflict message.
pub fn check_preconditions(group: &str, kind: &str, preconditions: &Preconditions, live: &Value) -> ApiResult<()> {
    let conflict = |reason: String| Err(ApiError::conflict(group, kind, live.name(), reason));
    if let Some(uid) = &preconditions.uid
        && uid != live.uid()
    {
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            live.uid()
        ));
    }
    if let Some(version) = &preconditions.resource_version
        && version != live.resource_version()
    {
        return conflict(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
            live.resource_version()
        ));
    }
    Ok(())
}

fn decide(resource: &ResourceRef, now: jiff::Timestamp, options: &DeleteOptions, live: &Value) -> Decision {
    let is_core = |plural: &str| resource.gvr.group.is_empty() && *resource.gvr.resource == *plural;
    let mut object = live.clone();
    let required = required_finalizers(resource, options, live);
    let finalizers_changed = required != live.finalizers();
    object.set_finalizers(required.clone());
    if is_core("pods") {
        return decide_pod(now, options, live, object, finalizers_changed);
    }
    // A CRD ignores propagation policies, has no grace period, and keeps its generation.
    if !live.is_deleting() && is_definition(resource) {
        let mut object = live.clone();
        object.metadata_mut().insert("deletionTimestamp".into(), format_time(now).into());
        return Decision::Mark(object);
    }
    if is_core("namespaces") && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty()) {
        if live.is_deleting() && !finalizers_changed {
            return Decision::Keep;
        }
        if !live.is_deleting() {
            object.metadata_mut().insert("deletionTimestamp".into(), format_time(now).into());
            object["status"]["phase"] = "Terminating".into();
        }
        return Decision::Mark(object);
    }
    if required.is_empty() {
        return Decision::Remove;
    }
    if live.is_deleting() && !finalizers_changed {
        return Decision::Keep;
    }
    mark_for_deletion(&mut object, now, 0);
    Decision::Mark(object)
}

fn is_definition(resource: &ResourceRef) -> bool {
    (&*resource.gvr.group, &*resource.gvr.resource) == ("apiextensions.k8s.io", "customresourcedefinitions")
}

fn decide_pod(
    now: jiff::Timestamp,
    options: &DeleteOptions,
    live: &Value,
    mut object: Value,
    finalizers_changed: bool,
) -> Decision {
    let has_finalizers = !object.finalizers().is_empty();
    let default = live["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(DEFAULT_POD_GRACE_SECONDS);
    // Negative values mean one second, the shortest grace period.
    let requested = Some(options.grace_period_seconds.unwrap_or(default)).filter(|grace| *grace >= 0).unwrap_or(1);
    let is_finished = matches!(live["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let is_unscheduled = live["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let grace = if is_unscheduled || is_finished { 0 } else { requested };
    if live.is_deleting() {
        let current = live.grace_period_seconds().unwrap_or(0);
        let is_shorter = options.grace_period_seconds.is_some() && requested < current;
        if current == 0 && !has_finalizers {
            return Decision::Remove;
        }
        if !is_shorter {
            return if finalizers_changed { Decision::Mark(object) } else { Decision::Keep };
        }
        let (start, grace) = shorten_grace_period(now, live, current, requested);
        object.metadata_mut().remove("deletionTimestamp");
        mark_for_deletion(&mut object, start, grace);
        return if requested == 0 && !has_finalizers {
            Decision::MarkAndRemove(object)
        } else {
            Decision::Mark(object)
        };
    }
    object.metadata_mut().remove("deletionTimestamp");
    mark_for_deletion(&mut object, now, grace);
    if grace == 0 && !has_finalizers { Decision::MarkAndRemove(object) } else { Decision::Mark(object) }
}

/// Returns start and length in seconds of a shortened grace period. If it would be over already, it ends now and lasts at most
/// one second.
fn shorten_grace_period(now: jiff::Timestamp, live: &Value, current: i64, requested: i64) -> (jiff::Timestamp, i64) {
    let seconds = jiff::SignedDuration::from_secs;
    let due = live.meta_text("deletionTimestamp").parse::<jiff::Timestamp>().unwrap_or(now);
    let start = due.checked_sub(seconds(current)).unwrap_or(now);
    if start.checked_add(seconds(requested)).is_ok_and(|due| due >= now) {
        return (start, requested);
    }
    let grace = requested.min(1);
    (now.checked_sub(seconds(grace)).unwrap_or(now), grace)
}

/// Sets the deletion metadata; increments the generation once, for kinds that have one.
fn mark_for_deletion(object: &mut Value, now: jiff::Timestamp, grace: i64) {
    let generation = object.generation();
    let is_first_mark = object.grace_period_seconds().is_none();
    let due = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
    let metadata = object.metadata_mut();
    if is_first_mark && generation > 0 {
        metadata.insert("generation".into(), json!(generation + 1));
    }
    metadata.entry("deletionTimestamp").or_insert_with(|| format_time(due).into());
    metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
}

/// Kinds whose dependents are orphaned by default, for compatibility with clients older than the garbage collector.
fn orphans_dependents_by_default(resource: &ResourceRef) -> bool {
    matches!((&*resource.gvr.group, &*resource.gvr.resource), ("batch", "jobs") | ("", "replicationcontrollers"))
}

/// Warning for the deletion of a job without a propagation policy.
fn propagation_warning(resource: &ResourceRef, options: &DeleteOptions) -> Option<&'static str> {
    (options.dependents.is_none() && &*resource.gvr.resource == "jobs" && orphans_dependents_by_default(resource)).then_some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    )
}

/// The finalizers that the propagation policy requires.
fn required_finalizers(resource: &ResourceRef, options: &DeleteOptions, live: &Value) -> Vec<String> {
    let mut current = live.finalizers();
    let has_finalizer = |name: &str| current.iter().any(|f| f == name);
    let (orphan, foreground) = match options.dependents {
        Some(DependentsPolicy::Orphan(orphan)) => (orphan, false),
        Some(DependentsPolicy::Propagation(policy)) => {
            (policy == PropagationPolicy::Orphan, policy == PropagationPolicy::Foreground)
        }
        None if has_finalizer(ORPHAN) || has_finalizer(FOREGROUND) => {
            (has_finalizer(ORPHAN), has_finalizer(FOREGROUND))
        }
        None => (orphans_dependents_by_default(resource), false),
    };
    for (name, is_required) in [(ORPHAN, orphan), (FOREGROUND, foreground)] {
        if !is_required {
            current.retain(|f| f != name);
        } else if !current.iter().any(|f| f == name) {
            current.push(name.to_owned());
        }
    }
    current
}
