//! `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` admission.
//!
//! Configurations are parsed again when they change. Validating webhooks are called concurrently, mutating ones
//! sequentially. Error messages are those of kube-apiserver.

pub mod client;
pub mod config;
pub mod matching;
pub(crate) mod patching;
pub(crate) mod review;

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Details, Reason};
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_cel::with_base_scope;
use crowsnest_registry::admission::expression::{self, Inputs};
use crowsnest_registry::admission::{Admission, Attributes, Mutation, Operation, Validation};
use crowsnest_registry::storage::Revision;
use serde_json::Value;

use self::client::WebhookClient;
use self::config::Webhook;
use self::review::Answer;
use crate::environment::{Environment, convert_to_request_version, convert_to_version, namespace_of};

/// The parsed configurations of one kind, at a revision of their resource.
#[derive(Debug, Default)]
struct Configured {
    revision: Option<Revision>,
    webhooks: Vec<Webhook>,
}

/// Source of configurations, parsed again when one of them changes.
struct Source {
    resource: &'static str,
    current: ArcSwap<Configured>,
}

impl Source {
    fn new(resource: &'static str) -> Self {
        Self { resource, current: ArcSwap::default() }
    }

    fn load(&self, environment: &dyn Environment) -> Arc<Configured> {
        let revision = environment.revision(self.resource);
        let current = self.current.load_full();
        if current.revision == Some(revision) {
            return current;
        }
        let objects = environment.configurations(self.resource);
        let next = Arc::new(Configured { revision: Some(revision), webhooks: config::parse_all(&objects) });
        self.current.store(next.clone());
        next
    }
}

/// Name of this step for reinvocation.
const STEP: &str = "MutatingAdmissionWebhook";

/// The admission plugin.
pub struct Webhooks {
    environment: Arc<dyn Environment>,
    access_checker: Arc<dyn AccessChecker>,
    client: Arc<WebhookClient>,
    mutating: Source,
    validating: Source,
}

/// A webhook to call, with the version to send.
struct Call<'a> {
    webhook: &'a Webhook,
    gvr: Gvr,
}

impl Webhooks {
    pub fn new(
        environment: Arc<dyn Environment>,
        access_checker: Arc<dyn AccessChecker>,
        client: Arc<WebhookClient>,
    ) -> Self {
        Self {
            environment,
            access_checker,
            client,
            mutating: Source::new("mutatingwebhookconfigurations"),
            validating: Source::new("validatingwebhookconfigurations"),
        }
    }

    /// True if a mutating webhook has rules for this write.
    pub fn has_mutating_rules_for(&self, a: &Attributes<'_>) -> bool {
        self.has_rules_for(&self.mutating, a)
    }

    /// True if a validating webhook has rules for this write.
    pub fn has_validating_rules_for(&self, a: &Attributes<'_>) -> bool {
        self.has_rules_for(&self.validating, a)
    }

    fn has_rules_for(&self, source: &Source, a: &Attributes<'_>) -> bool {
        if matching::exempt(&a.resource.gvr) {
            return false;
        }
        let (configured, equivalents) = (source.load(&*self.environment), self.environment.equivalents(a));
        let covers = |webhook: &Webhook| matching::rules(&webhook.rules, webhook.equivalent, a, &equivalents).is_some();
        configured.webhooks.iter().any(covers)
    }

    /// True if a webhook is called. `Err` denies the write: a condition could not be evaluated under failure policy
    /// `Fail`.
    async fn wanted<'a>(
        &self,
        webhook: &'a Webhook,
        a: &Attributes<'_>,
        object: Option<&Value>,
        namespace: Option<&Value>,
        equivalents: &[Gvr],
    ) -> ApiResult<Option<Call<'a>>> {
        let Some(matched) = matching::rules(&webhook.rules, webhook.equivalent, a, equivalents) else {
            return Ok(None);
        };
        if !matching::selectors(&webhook.selectors, a, object, namespace) {
            return Ok(None);
        }
        let held = match webhook.conditions.is_empty() {
            true => Ok(true),
            // Conditions see the objects in the version that the webhook receives.
            false if matched.gvr != a.resource.gvr => {
                let object = convert_to_version(&matched.gvr, a, object).await.map_err(ApiError::internal)?;
                let old = convert_to_version(&matched.gvr, a, a.old).await.map_err(ApiError::internal)?;
                self.hold(webhook, a, &matched.gvr, [object.as_ref(), old.as_ref()])
            }
            false => self.hold(webhook, a, &matched.gvr, [object, a.old]),
        };
        match held {
            Ok(true) => Ok(Some(Call { webhook, gvr: matched.gvr })),
            Ok(false) => Ok(None),
            Err(why) if webhook.ignore_failure => {
                tracing::warn!(webhook = webhook.name, %why, "ignoring a webhook whose match condition failed");
                Ok(None)
            }
            Err(why) => Err(ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, a.name, why)),
        }
    }

    /// Evaluates the match conditions of a webhook on the new and the old object.
    fn hold(
        &self,
        webhook: &Webhook,
        a: &Attributes<'_>,
        gvr: &Gvr,
        [object, old]: [Option<&Value>; 2],
    ) -> Result<bool, String> {
        let mut request = review::request(a, gvr, "", None, None);
        // The kind is that of the webhook's version, the resource that of the request.
        request["resource"] = request["requestResource"].clone();
        let (user_authorizer, own) = expression::user_authorizer(&self.access_checker, a);
        let authorizer = Some((&user_authorizer, &own));
        let inputs = Inputs { object, old, request: &request, namespace: None, params: None, authorizer };
        with_base_scope(|base| expression::evaluate_conditions(&webhook.conditions, &inputs.scope(base)))
    }

    /// Calls a webhook and parses its response. `Ok(None)` means that it failed under failure policy `Ignore`.
    async fn call(
        &self,
        call: &Call<'_>,
        a: &Attributes<'_>,
        object: Option<&Value>,
        mutating: bool,
    ) -> ApiResult<Option<Answer>> {
        let webhook = call.webhook;
        if a.ctx.dry_run && !webhook.dry_run_safe {
            return Err(ApiError::bad_request(format!(
                "admission webhook {:?} does not support dry run",
                webhook.name
            )));
        }
        match self.exchange(call, a, object, mutating).await {
            Ok(answer) => {
                if let Some(record) = &a.ctx.record {
                    for (key, value) in &answer.annotations {
                        record.annotate(&format!("{}/{key}", webhook.name), value);
                    }
                }
                Ok(Some(answer))
            }
            Err(why) if webhook.ignore_failure => {
                tracing::warn!(webhook = webhook.name, configuration = webhook.configuration, %why, "webhook failed open");
                Ok(None)
            }
            Err(why) => Err(ApiError::internal(format!("failed calling webhook {:?}: {why}", webhook.name))),
        }
    }

    async fn exchange(
        &self,
        call: &Call<'_>,
        a: &Attributes<'_>,
        object: Option<&Value>,
        mutating: bool,
    ) -> Result<Answer, String> {
        let webhook = call.webhook;
        let version =
            webhook.review_version.ok_or("webhook does not accept known AdmissionReview versions (v1, v1beta1)")?;
        let target = webhook.target.as_ref().map_err(|e| format!("failed to call webhook: {e}"))?;
        let sent = convert_to_version(&call.gvr, a, object).await?;
        let old = convert_to_version(&call.gvr, a, a.old).await?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review = review::review(version, review::request(a, &call.gvr, &uid, sent.as_ref(), old.as_ref()));
        let answer = self
            .client
            .post(target, &review, webhook.timeout)
            .await
            .map_err(|e| format!("failed to call webhook: {e}"))?;
        review::read(&answer, version, &uid, mutating).map_err(|why| why.to_string())
    }

    async fn mutate_all(
        &self,
        a: &Attributes<'_>,
        object: &mut Option<&mut Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let environment = &*self.environment;
        let configured = self.mutating.load(environment);
        if configured.webhooks.is_empty() {
            return Ok(());
        }
        let (namespace, equivalents) = (namespace_of(environment, a).await?, environment.equivalents(a));
        a.reinvocation.enter(STEP, object.as_deref());
        for webhook in &configured.webhooks {
            let wanted = self.wanted(webhook, a, object.as_deref(), namespace.as_ref(), &equivalents);
            let Some(call) = wanted.await? else { continue };
            let who = format!("{}/{}", webhook.configuration, webhook.name);
            if !a.reinvocation.should_invoke(STEP, &who) {
                continue;
            }
            let before = object.as_deref().cloned();
            self.mutate_one(&call, a, object, warnings).await?;
            a.reinvocation.record_invocation(STEP, &who, object.as_deref() != before.as_ref(), webhook.reinvoke);
        }
        a.reinvocation.leave(STEP, object.as_deref());
        Ok(())
    }

    async fn mutate_one(
        &self,
        call: &Call<'_>,
        a: &Attributes<'_>,
        object: &mut Option<&mut Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let Some(mut answer) = self.call(call, a, object.as_deref(), true).await? else { return Ok(()) };
        warnings.append(&mut answer.warnings);
        if let Some(refusal) = answer.refusal {
            return Err(denied(&call.webhook.name, &refusal));
        }
        if answer.patch.is_empty() {
            return Ok(());
        }
        let Some(object) = object.as_deref_mut() else {
            return Err(ApiError::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                call.webhook.name
            )));
        };
        let before = if call.gvr == a.resource.gvr {
            object.clone()
        } else {
            convert_to_version(&call.gvr, a, Some(object)).await.map_err(ApiError::internal)?.unwrap_or_default()
        };
        let mut patched = patching::apply(&before, &answer.patch).map_err(ApiError::internal)?;
        if !a.resource.is_custom() || a.subresource_of_other_kind().is_some() {
            patched = patching::read_again(&before, patched).map_err(ApiError::internal)?;
        }
        *object = convert_to_request_version(&call.gvr, a, patched).await?;
        Ok(())
    }

    async fn validate_all(
        &self,
        a: &Attributes<'_>,
        object: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let environment = &*self.environment;
        let configured = self.validating.load(environment);
        if configured.webhooks.is_empty() {
            return Ok(());
        }
        let (namespace, equivalents) = (namespace_of(environment, a).await?, environment.equivalents(a));
        let mut calls = Vec::new();
        for webhook in &configured.webhooks {
            calls.extend(self.wanted(webhook, a, object, namespace.as_ref(), &equivalents).await?);
        }
        let answers = futures::future::join_all(calls.iter().map(|call| self.call(call, a, object, false))).await;
        let mut refused = None;
        for (call, answer) in calls.iter().zip(answers) {
            match answer {
                Ok(Some(mut answer)) => {
                    warnings.append(&mut answer.warnings);
                    if let Some(refusal) = answer.refusal {
                        refused.get_or_insert(denied(&call.webhook.name, &refusal));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Admission for Webhooks {
    async fn mutate(&self, Mutation { attributes: a, mut object, warnings }: Mutation<'_>) -> ApiResult<()> {
        if matching::exempt(&a.resource.gvr)
            || (object.is_none() && !matches!(a.operation, Operation::Delete | Operation::Connect))
        {
            return Ok(());
        }
        self.mutate_all(a, &mut object, warnings).await
    }

    async fn validate(&self, Validation { attributes: a, object, warnings }: Validation<'_>) -> ApiResult<()> {
        if matching::exempt(&a.resource.gvr) {
            return Ok(());
        }
        self.validate_all(a, object, warnings).await
    }
}

/// The error for a denied write: code, reason and details from the webhook, and its message prefixed with the
/// webhook's name.
fn denied(webhook: &str, status: &Value) -> ApiError {
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let by = format!("admission webhook {webhook:?} denied the request");
    let (message, reason) = (text("message"), text("reason"));
    let code = status.get("code").and_then(Value::as_u64).and_then(|c| u16::try_from(c).ok()).filter(|c| *c >= 400);
    let message = match (message.as_str(), reason.as_str()) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let mut error = ApiError::new(Reason::BadRequest, message);
    error.code = code.unwrap_or(400);
    error.reason = reason;
    error.details = status
        .get("details")
        .filter(|details| details.is_object())
        .map(|details| Box::new(Details::from_json(details)));
    error
}
