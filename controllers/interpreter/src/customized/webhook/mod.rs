//! Interpreter webhooks from the control plane's ResourceInterpreterWebhookConfigurations, which the controllers keep
//! up to date.
//!
//! If several webhooks match an operation on a kind, the first by `<configuration>/<webhook>` is called, and its
//! failure is final. A webhook keeps its connections until its configuration changes.

mod client;
mod exchange;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crowsnest_api::config::{
    InterpreterOperation as Operation, ResourceInterpreterWebhook, ResourceInterpreterWebhookConfiguration,
    RuleWithOperations,
};
use crowsnest_api::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use crowsnest_apimachinery::json_patch::{self, CopiedBytes};
use crowsnest_apimachinery::unstructured;
use parking_lot::RwLock;
use serde_json::Value;

use crate::Error;
use client::WebhookClient;
pub use client::{CallError, ConfigError};
use crowsnest_plan::dependencies::DependencyList;
use exchange::{OperationRequest, OperationResponse};
pub use services::{LookupError, ServiceError, Services};

/// Default timeout of a webhook.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const ANY: &str = "*";

/// Failure of a webhook.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error(
        "could not create ResourceInterpreterContext objects: webhook does not accept known ResourceInterpreterContext \
         versions (v1alpha1)"
    )]
    Versions,
    #[error("could not create ResourceInterpreterContext objects: {0}")]
    Encode(#[source] serde_json::Error),
    #[error("could not get REST client: {0}")]
    Config(#[from] ConfigError),
    #[error("failed to call webhook: {0}")]
    Call(#[from] CallError),
    #[error("failed to call webhook: {0}")]
    Decode(#[source] serde_json::Error),
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
    #[error("webhook call failed, get status code: {code}, msg: {message}")]
    Refused { code: i32, message: String },
    #[error("cannot apply the patch of the response: {0}")]
    Patch(String),
}

/// A webhook and its client.
pub struct Webhook {
    /// `<configuration>/<webhook>`
    uid: String,
    webhook: ResourceInterpreterWebhook,
    services: Arc<dyn Services>,
    client: OnceLock<Result<WebhookClient, ConfigError>>,
}

/// All configured webhooks.
pub struct Webhooks {
    services: Arc<dyn Services>,
    hooks: RwLock<BTreeMap<String, Vec<Arc<Webhook>>>>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Webhooks::new(Arc::new(services::NoServices))
    }
}

impl Webhooks {
    pub fn new(services: Arc<dyn Services>) -> Self {
        Webhooks { services, hooks: RwLock::default() }
    }

    /// A copy, which is independent of later changes.
    pub fn snapshot(&self) -> Self {
        Webhooks { services: Arc::clone(&self.services), hooks: RwLock::new(self.hooks.read().clone()) }
    }

    /// Removes all configurations that do not satisfy the predicate.
    pub fn retain(&self, should_keep: impl Fn(&str) -> bool) {
        self.hooks.write().retain(|name, _| should_keep(name));
    }

    /// Adds or updates a configuration, or removes it (`None`).
    pub fn set_configuration(&self, name: &str, configuration: Option<&ResourceInterpreterWebhookConfiguration>) {
        let mut hooks = self.hooks.write();
        let Some(configuration) = configuration else {
            hooks.remove(name);
            return;
        };
        let old = hooks.remove(name).unwrap_or_default();
        let hook = |webhook: &ResourceInterpreterWebhook| match old.iter().find(|old| old.webhook == *webhook) {
            Some(unchanged) => Arc::clone(unchanged),
            None => Arc::new(Webhook {
                uid: format!("{name}/{}", webhook.name),
                webhook: webhook.clone(),
                services: Arc::clone(&self.services),
                client: OnceLock::new(),
            }),
        };
        hooks.insert(name.to_owned(), configuration.webhooks.iter().map(hook).collect());
    }

    /// The webhook for an operation on objects of this kind.
    pub fn find(&self, object: &Value, operation: &Operation) -> Option<Arc<Webhook>> {
        let hooks = self.hooks.read();
        let matching = hooks.values().flatten().filter(|hook| hook.handles(object, operation));
        matching.min_by(|left, right| left.uid.cmp(&right.uid)).map(Arc::clone)
    }
}

/// True if a rule matches the operation on objects of this kind.
fn matches_rule(rule: &RuleWithOperations, object: &Value, operation: &Operation) -> bool {
    let (group, version) = exchange::group_version(object);
    let contains = |list: &[String], value: &str| list.iter().any(|entry| entry == ANY || entry == value);
    rule.operations.iter().any(|entry| *entry == Operation::All || entry == operation)
        && contains(&rule.api_groups, group)
        && contains(&rule.api_versions, version)
        && contains(&rule.kinds, unstructured::kind(object))
}

impl Webhook {
    fn handles(&self, object: &Value, operation: &Operation) -> bool {
        self.webhook.rules.iter().any(|rule| matches_rule(rule, object, operation))
    }

    fn timeout(&self) -> Duration {
        let seconds = self.webhook.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs)
    }

    fn to_error(&self, source: WebhookError) -> Error {
        Error::Webhook { webhook: self.uid.clone(), source: Box::new(source) }
    }

    async fn call_and_parse<T>(
        &self,
        request: OperationRequest<'_>,
        read: impl FnOnce(OperationResponse) -> Result<T, WebhookError>,
    ) -> Result<T, Error> {
        let result = self.call(request).await.and_then(read);
        result.map_err(|source| self.to_error(source))
    }

    async fn call(&self, request: OperationRequest<'_>) -> Result<OperationResponse, WebhookError> {
        if !self.webhook.interpreter_context_versions.iter().any(|version| version == exchange::VERSION) {
            return Err(WebhookError::Versions);
        }
        let uid = uuid::Uuid::new_v4().to_string();
        let message = serde_json::to_vec(&request.to_context(&uid)).map_err(WebhookError::Encode)?;
        let client = self.client.get_or_init(|| WebhookClient::new(&self.webhook.client_config));
        let client = client.as_ref().map_err(ConfigError::clone)?;
        let response = client.post(self.services.as_ref(), message, self.timeout()).await?;
        OperationResponse::parse(&uid, response)
    }

    pub async fn replicas(&self, object: &Value) -> Result<(i32, Option<ReplicaRequirements>), Error> {
        self.call_and_parse(OperationRequest::new(object, Operation::InterpretReplica), OperationResponse::replicas)
            .await
    }

    pub async fn components(&self, object: &Value) -> Result<Vec<Component>, Error> {
        self.call_and_parse(OperationRequest::new(object, Operation::InterpretComponent), OperationResponse::components)
            .await
    }

    pub async fn reflect(&self, object: &Value) -> Result<Value, Error> {
        self.call_and_parse(OperationRequest::new(object, Operation::InterpretStatus), OperationResponse::status).await
    }

    pub async fn is_healthy(&self, object: &Value) -> Result<bool, Error> {
        self.call_and_parse(OperationRequest::new(object, Operation::InterpretHealth), OperationResponse::healthy).await
    }

    pub async fn dependencies(&self, object: &Value) -> Result<DependencyList, Error> {
        self.call_and_parse(
            OperationRequest::new(object, Operation::InterpretDependency),
            OperationResponse::dependencies,
        )
        .await
    }

    pub async fn revise(&self, object: &Value, replicas: i32) -> Result<Value, Error> {
        self.call_and_patch(OperationRequest { replicas, ..OperationRequest::new(object, Operation::ReviseReplica) })
            .await
    }

    pub async fn retain(&self, desired: &Value, observed: &Value) -> Result<Value, Error> {
        self.call_and_patch(OperationRequest {
            observed: Some(observed),
            ..OperationRequest::new(desired, Operation::Retain)
        })
        .await
    }

    pub async fn aggregate(&self, object: &Value, statuses: &[AggregatedStatusItem]) -> Result<Value, Error> {
        self.call_and_patch(OperationRequest { statuses, ..OperationRequest::new(object, Operation::AggregateStatus) })
            .await
    }

    /// The object with the response's patch applied.
    async fn call_and_patch(&self, request: OperationRequest<'_>) -> Result<Value, Error> {
        let object = request.object;
        let patch = self.call_and_parse(request, OperationResponse::patch).await?;
        let Some(patch) = patch else { return Ok(object.clone()) };
        apply_patch(object, &patch).map_err(|error| self.to_error(WebhookError::Patch(error)))
    }
}

fn apply_patch(object: &Value, patch: &[u8]) -> Result<Value, String> {
    let operations: Vec<Value> = serde_json::from_slice(patch).map_err(|error| error.to_string())?;
    let (mut patched, mut copied) = (object.clone(), CopiedBytes::default());
    for (index, operation) in operations.iter().enumerate() {
        let applied = json_patch::apply(&mut patched, operation, &mut copied);
        applied.ok_or_else(|| format!("operation {index} of the patch cannot be applied"))?;
    }
    Ok(patched)
}
