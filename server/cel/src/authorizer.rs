//! The variable `authorizer`: authorization checks for the user or a service account in expressions.

use std::fmt;
use std::sync::Arc;

use crowsnest_apimachinery::names::format::{validate_dns1123_label, validate_dns1123_subdomain};
use crowsnest_apimachinery::rbac::{Action, Decision};
use crowsnest_apimachinery::user::UserInfo;
use kube::core::cel::cel::extractors::This;
use kube::core::cel::cel::objects::Opaque;
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::charge;

pub const AUTHORIZER: &str = "authorizer";
/// Field of `authorizer` for the request itself.
pub(super) const REQUEST_RESOURCE: &str = "requestResource";
/// Cost of a check in steps, as in kube-apiserver.
const CHECK_COST: u64 = 350_000;

/// Authorizer for expressions.
pub trait AccessChecker: Send + Sync {
    fn decide(&self, user: &UserInfo, action: &Action) -> Decision;
}

/// An authorizer for the user of an expression: the value of `authorizer`.
#[derive(Clone)]
pub struct UserAuthorizer {
    access_checker: Arc<dyn AccessChecker>,
    user: UserInfo,
}

impl UserAuthorizer {
    pub fn new(access_checker: Arc<dyn AccessChecker>, user: UserInfo) -> Self {
        Self { access_checker, user }
    }

    /// Adds `authorizer` and `authorizer.requestResource` to a scope.
    pub fn bind(self, request: &Action, scope: &mut Context<'_>) {
        let request_check = AuthorizationCheck::Action { authorizer: self.clone(), action: request.clone() };
        scope.add_variable_from_value(format!("{AUTHORIZER}.{REQUEST_RESOURCE}"), request_check.into_value());
        scope.add_variable_from_value(AUTHORIZER, AuthorizationCheck::Authorizer(self).into_value());
    }
}

impl fmt::Debug for UserAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserAuthorizer").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl PartialEq for UserAuthorizer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.access_checker, &other.access_checker) && self.user == other.user
    }
}

impl Eq for UserAuthorizer {}

/// An authorization check that an expression builds step by step, or its decision.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AuthorizationCheck {
    Authorizer(UserAuthorizer),
    Group {
        authorizer: UserAuthorizer,
        group: String,
    },
    /// A resource or path without a verb.
    Action {
        authorizer: UserAuthorizer,
        action: Action,
    },
    Decision {
        allowed: bool,
        reason: String,
    },
}

impl Opaque for AuthorizationCheck {
    fn runtime_type_name(&self) -> &str {
        match self {
            AuthorizationCheck::Authorizer(_) => "kubernetes.authorization.Authorizer",
            AuthorizationCheck::Group { .. } => "kubernetes.authorization.GroupCheck",
            AuthorizationCheck::Action { action: Action::Path { .. }, .. } => "kubernetes.authorization.PathCheck",
            AuthorizationCheck::Action { action: Action::Resource { .. }, .. } => {
                "kubernetes.authorization.ResourceCheck"
            }
            AuthorizationCheck::Decision { .. } => "kubernetes.authorization.Decision",
        }
    }
}

impl AuthorizationCheck {
    fn into_value(self) -> Cel {
        Cel::Opaque(Arc::new(self))
    }

    fn from_value(value: &Cel) -> Option<&AuthorizationCheck> {
        match value {
            Cel::Opaque(opaque) => opaque.downcast_ref::<AuthorizationCheck>(),
            _ => None,
        }
    }
}

type Outcome = Result<Cel, ExecutionError>;

fn function_error(name: &str, reason: &str) -> ExecutionError {
    ExecutionError::function_error(name, reason)
}

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("path", path);
    context.add_function("group", group);
    context.add_function("serviceAccount", service_account);
    context.add_function("resource", resource);
    context.add_function("subresource", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrow(&this, |(subresource, _, _)| subresource.clone_from(&text))
    });
    context.add_function("namespace", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrow(&this, |(_, namespace, _)| namespace.clone_from(&text))
    });
    context.add_function("name", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrow(&this, |(_, _, name)| name.clone_from(&text))
    });
    // RBAC ignores selectors.
    for selector in ["fieldSelector", "labelSelector"] {
        context.add_function(selector, |This(this): This<Cel>, _: Arc<String>| -> Outcome { narrow(&this, |_| {}) });
    }
    context.add_function("check", check);
    context.add_function("allowed", |This(this): This<Cel>| read_decision(&this, |allowed, _| Cel::Bool(allowed)));
    context.add_function("reason", |This(this): This<Cel>| read_decision(&this, |_, reason| Cel::from(reason)));
    context.add_function("errored", |This(this): This<Cel>| read_decision(&this, |_, _| Cel::Bool(false)));
    context.add_function("error", |This(this): This<Cel>| read_decision(&this, |_, _| Cel::from("")));
}

fn path(This(this): This<Cel>, path: Arc<String>) -> Outcome {
    let Some(AuthorizationCheck::Authorizer(authorizer)) = AuthorizationCheck::from_value(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if path.trim().is_empty() {
        return Err(function_error("path", "path must not be empty"));
    }
    let action = Action::Path { verb: String::new(), path: path.to_string() };
    Ok(AuthorizationCheck::Action { authorizer: authorizer.clone(), action }.into_value())
}

fn group(This(this): This<Cel>, group: Arc<String>) -> Outcome {
    let Some(AuthorizationCheck::Authorizer(authorizer)) = AuthorizationCheck::from_value(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    Ok(AuthorizationCheck::Group { authorizer: authorizer.clone(), group: group.to_string() }.into_value())
}

fn service_account(This(this): This<Cel>, namespace: Arc<String>, name: Arc<String>) -> Outcome {
    let Some(AuthorizationCheck::Authorizer(authorizer)) = AuthorizationCheck::from_value(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if !validate_dns1123_subdomain(&name).is_empty() {
        return Err(function_error("serviceAccount", "Invalid service account name"));
    }
    if !validate_dns1123_label(&namespace).is_empty() {
        return Err(function_error("serviceAccount", "Invalid service account namespace"));
    }
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    let user = UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), groups);
    Ok(AuthorizationCheck::Authorizer(UserAuthorizer { access_checker: Arc::clone(&authorizer.access_checker), user })
        .into_value())
}

fn resource(This(this): This<Cel>, resource: Arc<String>) -> Outcome {
    let Some(AuthorizationCheck::Group { authorizer, group }) = AuthorizationCheck::from_value(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if resource.trim().is_empty() {
        return Err(function_error("resource", "resource must not be empty"));
    }
    let action = Action::Resource {
        verb: String::new(),
        group: group.clone(),
        resource: resource.to_string(),
        subresource: String::new(),
        namespace: String::new(),
        name: String::new(),
    };
    Ok(AuthorizationCheck::Action { authorizer: authorizer.clone(), action }.into_value())
}

/// Returns the check with another subresource, namespace or name.
fn narrow(this: &Cel, change: impl FnOnce((&mut String, &mut String, &mut String))) -> Outcome {
    let Some(AuthorizationCheck::Action { authorizer, action: action @ Action::Resource { .. } }) =
        AuthorizationCheck::from_value(this)
    else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let mut action = action.clone();
    if let Action::Resource { subresource, namespace, name, .. } = &mut action {
        change((subresource, namespace, name));
    }
    Ok(AuthorizationCheck::Action { authorizer: authorizer.clone(), action }.into_value())
}

fn check(This(this): This<Cel>, requested_verb: Arc<String>) -> Outcome {
    let Some(AuthorizationCheck::Action { authorizer, action }) = AuthorizationCheck::from_value(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if !charge(CHECK_COST) {
        return Err(function_error("check", "operation cancelled: actual cost limit exceeded"));
    }
    let mut action = action.clone();
    let (Action::Resource { verb, .. } | Action::Path { verb, .. }) = &mut action;
    verb.clone_from(&requested_verb);
    let (allowed, reason) = match authorizer.access_checker.decide(&authorizer.user, &action) {
        Decision::Allowed { reason } => (true, reason),
        Decision::NoOpinion { reason } => (false, reason),
    };
    Ok(AuthorizationCheck::Decision { allowed, reason }.into_value())
}

fn read_decision(this: &Cel, convert: impl FnOnce(bool, &str) -> Cel) -> Outcome {
    match AuthorizationCheck::from_value(this) {
        Some(AuthorizationCheck::Decision { allowed, reason }) => Ok(convert(*allowed, reason)),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}
