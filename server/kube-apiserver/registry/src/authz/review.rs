//! Virtual resources of `authorization.k8s.io` and `authentication.k8s.io`: evaluated on create, never stored.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::rbac::{Action, Decision, selectors};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_apimachinery::unstructured::text;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_schema::print::format_definition;
use serde_json::{Value, json};

use crate::authentication::Authenticator;
use crate::authz::Authorizer;
use crate::object::{Object, format_time};
use crate::resource::ResourceRef;
use crate::strategy::RequestContext;

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// True for resources that are evaluated on create and never stored.
pub fn is_review(resource: &ResourceRef) -> bool {
    matches!(&*resource.gvr.group, "authorization.k8s.io" | "authentication.k8s.io")
}

impl Authorizer {
    /// Evaluates a review; `None` if the resource is not a review.
    pub async fn review(
        &self,
        authenticator: &Authenticator,
        ctx: &RequestContext,
        resource: &ResourceRef,
        object: &Value,
    ) -> Option<ApiResult<Value>> {
        let review = match (&*resource.gvr.group, resource.kind.as_str()) {
            ("authorization.k8s.io", "SelfSubjectAccessReview") => {
                self.access_review(object, AccessReviewKind::SelfSubject, ctx.user.clone(), "")
            }
            ("authorization.k8s.io", "SubjectAccessReview") => {
                self.access_review(object, AccessReviewKind::Subject, subject(object), "")
            }
            ("authorization.k8s.io", "LocalSubjectAccessReview") => {
                self.access_review(object, AccessReviewKind::Local, subject(object), &ctx.namespace)
            }
            ("authorization.k8s.io", "SelfSubjectRulesReview") => self.rules_review(object, &ctx.user),
            ("authentication.k8s.io", "SelfSubjectReview") => Ok(self_subject_review(ctx)),
            ("authentication.k8s.io", "TokenReview") => token_review(authenticator, object).await,
            _ => return None,
        };
        Some(review.map(|mut review| {
            review["kind"] = resource.kind.clone().into();
            review["apiVersion"] = resource.gvr.api_version().into();
            review
        }))
    }

    fn access_review(
        &self,
        object: &Value,
        kind: AccessReviewKind,
        user: UserInfo,
        namespace: &str,
    ) -> ApiResult<Value> {
        let spec = &object["spec"];
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let errors = validate_access_review(object, kind, namespace);
        if !errors.is_empty() {
            return Err(ApiError::invalid("authorization.k8s.io", "", "", errors));
        }
        let action = if resource.is_object() {
            Action::Resource {
                verb: text(resource, "verb"),
                group: text(resource, "group"),
                resource: text(resource, "resource"),
                subresource: text(resource, "subresource"),
                namespace: text(resource, "namespace"),
                name: text(resource, "name"),
            }
        } else {
            Action::Path { verb: text(path, "verb"), path: text(path, "path") }
        };
        let (allowed, reason) = match self.decide(&user, &action) {
            Decision::Allowed { reason } => (true, reason),
            Decision::NoOpinion { reason } => (false, reason),
        };
        let mut status = json!({"allowed": allowed});
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        let evaluation_error = selectors::evaluation_error(resource);
        if !evaluation_error.is_empty() {
            status["evaluationError"] = evaluation_error.into();
        }
        Ok(json!({"metadata": review_metadata(object), "spec": spec, "status": status}))
    }

    fn rules_review(&self, object: &Value, user: &UserInfo) -> ApiResult<Value> {
        let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let (rules, unresolved) = self.rbac().rules_for(user, namespace);
        let filter_rules = |is_resource: bool| -> Vec<Value> {
            rules.iter().filter(|r| r.non_resource_urls.is_empty() == is_resource).map(|r| json!(r)).collect()
        };
        let mut status = json!({
            "incomplete": !unresolved.is_empty(), "resourceRules": filter_rules(true), "nonResourceRules": filter_rules(false),
        });
        if !unresolved.is_empty() {
            status["evaluationError"] = unresolved.join(", ").into();
        }
        Ok(json!({"metadata": {}, "spec": {}, "status": status}))
    }
}

/// Kind of an access review: it determines the subject and the allowed fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessReviewKind {
    SelfSubject,
    Subject,
    Local,
}

/// Validates an access review.
fn validate_access_review(object: &Value, kind: AccessReviewKind, namespace: &str) -> Vec<FieldError> {
    let spec = &object["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    // Go prints this struct without JSON names.
    let print_path = || json!({"Path": text(path, "path"), "Verb": text(path, "verb")}).to_string();
    let invalid = |field: &str, value: String, reason: &str| {
        FieldError::new(FieldErrorKind::Invalid, field.to_owned(), Some(value), reason)
    };
    let mut errors = Vec::new();
    if resource.is_object() && path.is_object() {
        let reason = "cannot be specified in combination with resourceAttributes";
        errors.push(invalid("spec.nonResourceAttributes", print_path(), reason));
    }
    if !resource.is_object() && !path.is_object() {
        let reason = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(invalid("spec.resourceAttributes", "null".into(), reason));
    }
    let subject = subject(object);
    if kind != AccessReviewKind::SelfSubject && subject.name.is_empty() && subject.groups.is_empty() {
        let reason = "at least one of user or group must be specified";
        errors.push(FieldError::invalid("spec.user", "", reason));
    }
    errors.extend(selectors::validate(resource));
    let metadata = object["metadata"].as_object();
    let allowed_fields: &[&str] =
        if kind == AccessReviewKind::Local { &["managedFields", "namespace"] } else { &["managedFields"] };
    let has_other_fields =
        metadata.is_some_and(|m| m.iter().any(|(name, v)| !allowed_fields.contains(&name.as_str()) && !v.is_null()));
    let metadata = || format_definition(&object["metadata"], METADATA);
    match kind {
        AccessReviewKind::Local => {
            if has_other_fields {
                errors.push(invalid("metadata", metadata(), "must be empty except for namespace"));
            }
            if resource.is_object() && text(resource, "namespace") != namespace {
                let (field, reason) = ("spec.resourceAttributes.namespace", "must match metadata.namespace");
                errors.push(FieldError::invalid(field, text(resource, "namespace"), reason));
            }
            if path.is_object() {
                errors.push(invalid("spec.nonResourceAttributes", print_path(), "disallowed on this kind of request"));
            }
        }
        _ if has_other_fields => errors.push(invalid("metadata", metadata(), "must be empty")),
        _ => {}
    }
    errors
}

/// The subject that `spec` identifies.
fn subject(object: &Value) -> UserInfo {
    let spec = &object["spec"];
    UserInfo {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: strings(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), strings(v))).collect(),
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn user_info(user: &UserInfo) -> Value {
    let mut info = json!({});
    if !user.name.is_empty() {
        info["username"] = user.name.clone().into();
    }
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    if !user.groups.is_empty() {
        info["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn self_subject_review(ctx: &RequestContext) -> Value {
    json!({"metadata": {"creationTimestamp": format_time(ctx.now)}, "status": {"userInfo": user_info(&ctx.user)}})
}

async fn token_review(authenticator: &Authenticator, object: &Value) -> ApiResult<Value> {
    let spec = &object["spec"];
    let Some(token) = spec["token"].as_str().filter(|t| !t.is_empty()) else {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    };
    let audiences = strings(&spec["audiences"]);
    let status = match authenticator.check_token(token, &audiences).await {
        Ok((user, audiences)) => json!({"authenticated": true, "user": user_info(&user), "audiences": audiences}),
        Err(error) => json!({"user": {}, "error": error}),
    };
    Ok(json!({"metadata": review_metadata(object), "spec": spec, "status": status}))
}

/// The metadata of a review.
fn review_metadata(object: &Value) -> Value {
    object.metadata().map_or_else(|| json!({}), |metadata| metadata.clone().into())
}
