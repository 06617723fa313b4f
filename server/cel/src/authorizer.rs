//! The variable `authorizer`: authorization checks for the user or a service account in expressions.

use std::fmt;
use std::sync::Arc;

use crowsnest_apimachinery::names::format::{dns1123_label, dns1123_subdomain};
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
const QUESTION: u64 = 350_000;

/// Authorizer for expressions.
pub trait AccessChecker: Send + Sync {
    fn decide(&self, user: &UserInfo, action: &Action) -> Decision;
}

/// The user of an expression, and the authorizer.
#[derive(Clone)]
pub struct Asker {
    access_checker: Arc<dyn AccessChecker>,
    user: UserInfo,
}

impl Asker {
    pub fn new(access_checker: Arc<dyn AccessChecker>, user: UserInfo) -> Self {
        Self { access_checker, user }
    }

    /// Adds `authorizer` and `authorizer.requestResource` to a scope.
    pub fn bind(self, request: &Action, scope: &mut Context<'_>) {
        let own = Question::Action { asker: self.clone(), action: request.clone() };
        scope.add_variable_from_value(format!("{AUTHORIZER}.{REQUEST_RESOURCE}"), own.into_value());
        scope.add_variable_from_value(AUTHORIZER, Question::Authorizer(self).into_value());
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl PartialEq for Asker {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.access_checker, &other.access_checker) && self.user == other.user
    }
}

impl Eq for Asker {}

/// A partially built check, or its result.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Question {
    Authorizer(Asker),
    Group {
        asker: Asker,
        group: String,
    },
    /// A resource or path without a verb.
    Action {
        asker: Asker,
        action: Action,
    },
    Answer {
        allowed: bool,
        reason: String,
    },
}

impl Opaque for Question {
    fn runtime_type_name(&self) -> &str {
        match self {
            Question::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Question::Group { .. } => "kubernetes.authorization.GroupCheck",
            Question::Action { action: Action::Path { .. }, .. } => "kubernetes.authorization.PathCheck",
            Question::Action { action: Action::Resource { .. }, .. } => "kubernetes.authorization.ResourceCheck",
            Question::Answer { .. } => "kubernetes.authorization.Decision",
        }
    }
}

impl Question {
    fn into_value(self) -> Cel {
        Cel::Opaque(Arc::new(self))
    }

    fn of(value: &Cel) -> Option<&Question> {
        match value {
            Cel::Opaque(opaque) => opaque.downcast_ref::<Question>(),
            _ => None,
        }
    }
}

type Outcome = Result<Cel, ExecutionError>;

fn failed(name: &str, why: &str) -> ExecutionError {
    ExecutionError::function_error(name, why)
}

pub(super) fn add(context: &mut Context<'_>) {
    context.add_function("path", path);
    context.add_function("group", group);
    context.add_function("serviceAccount", service_account);
    context.add_function("resource", resource);
    context.add_function("subresource", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrowed(&this, |(subresource, _, _)| subresource.clone_from(&text))
    });
    context.add_function("namespace", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrowed(&this, |(_, namespace, _)| namespace.clone_from(&text))
    });
    context.add_function("name", |This(this): This<Cel>, text: Arc<String>| -> Outcome {
        narrowed(&this, |(_, _, name)| name.clone_from(&text))
    });
    // RBAC ignores selectors.
    for selector in ["fieldSelector", "labelSelector"] {
        context.add_function(selector, |This(this): This<Cel>, _: Arc<String>| -> Outcome { narrowed(&this, |_| {}) });
    }
    context.add_function("check", check);
    context.add_function("allowed", |This(this): This<Cel>| answer(&this, |allowed, _| Cel::Bool(allowed)));
    context.add_function("reason", |This(this): This<Cel>| answer(&this, |_, reason| Cel::from(reason)));
    context.add_function("errored", |This(this): This<Cel>| answer(&this, |_, _| Cel::Bool(false)));
    context.add_function("error", |This(this): This<Cel>| answer(&this, |_, _| Cel::from("")));
}

fn path(This(this): This<Cel>, path: Arc<String>) -> Outcome {
    let Some(Question::Authorizer(asker)) = Question::of(&this) else { return Err(ExecutionError::NoSuchOverload) };
    if path.trim().is_empty() {
        return Err(failed("path", "path must not be empty"));
    }
    let action = Action::Path { verb: String::new(), path: path.to_string() };
    Ok(Question::Action { asker: asker.clone(), action }.into_value())
}

fn group(This(this): This<Cel>, group: Arc<String>) -> Outcome {
    let Some(Question::Authorizer(asker)) = Question::of(&this) else { return Err(ExecutionError::NoSuchOverload) };
    Ok(Question::Group { asker: asker.clone(), group: group.to_string() }.into_value())
}

fn service_account(This(this): This<Cel>, namespace: Arc<String>, name: Arc<String>) -> Outcome {
    let Some(Question::Authorizer(asker)) = Question::of(&this) else { return Err(ExecutionError::NoSuchOverload) };
    if !dns1123_subdomain(&name).is_empty() {
        return Err(failed("serviceAccount", "Invalid service account name"));
    }
    if !dns1123_label(&namespace).is_empty() {
        return Err(failed("serviceAccount", "Invalid service account namespace"));
    }
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    let user = UserInfo::new(format!("system:serviceaccount:{namespace}:{name}"), groups);
    Ok(Question::Authorizer(Asker { access_checker: Arc::clone(&asker.access_checker), user }).into_value())
}

fn resource(This(this): This<Cel>, resource: Arc<String>) -> Outcome {
    let Some(Question::Group { asker, group }) = Question::of(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if resource.trim().is_empty() {
        return Err(failed("resource", "resource must not be empty"));
    }
    let action = Action::Resource {
        verb: String::new(),
        group: group.clone(),
        resource: resource.to_string(),
        subresource: String::new(),
        namespace: String::new(),
        name: String::new(),
    };
    Ok(Question::Action { asker: asker.clone(), action }.into_value())
}

/// The check with another subresource, namespace or name.
fn narrowed(this: &Cel, change: impl FnOnce((&mut String, &mut String, &mut String))) -> Outcome {
    let Some(Question::Action { asker, action: action @ Action::Resource { .. } }) = Question::of(this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let mut action = action.clone();
    if let Action::Resource { subresource, namespace, name, .. } = &mut action {
        change((subresource, namespace, name));
    }
    Ok(Question::Action { asker: asker.clone(), action }.into_value())
}

fn check(This(this): This<Cel>, wanted: Arc<String>) -> Outcome {
    let Some(Question::Action { asker, action }) = Question::of(&this) else {
        return Err(ExecutionError::NoSuchOverload);
    };
    if !charge(QUESTION) {
        return Err(failed("check", "operation cancelled: actual cost limit exceeded"));
    }
    let mut action = action.clone();
    let (Action::Resource { verb, .. } | Action::Path { verb, .. }) = &mut action;
    verb.clone_from(&wanted);
    let (allowed, reason) = match asker.access_checker.decide(&asker.user, &action) {
        Decision::Allowed { reason } => (true, reason),
        Decision::NoOpinion { reason } => (false, reason),
    };
    Ok(Question::Answer { allowed, reason }.into_value())
}

fn answer(this: &Cel, of: impl FnOnce(bool, &str) -> Cel) -> Outcome {
    match Question::of(this) {
        Some(Question::Answer { allowed, reason }) => Ok(of(*allowed, reason)),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}
