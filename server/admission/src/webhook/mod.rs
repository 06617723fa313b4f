//! `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` admission.
//!
//! Configurations are parsed again when they change. Validating webhooks are called concurrently, mutating ones
//! sequentially. Error messages are those of kube-apiserver.

mod annotations;
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
use self::review::AdmissionResponse;
use crate::environment::{Environment, convert_to_request_version, convert_to_version, namespace_of};

/// The parsed configurations of one kind, at a revision of their resource.
#[derive(Debug, Default)]
struct ParsedConfigurations {
    /// `None` before the first load.
    revision: Option<Revision>,
    webhooks: Vec<Webhook>,
}

/// Cache of the configurations of one kind; parses them again when one of them changes.
struct ConfigurationCache {
    resource: &'static str,
    current: ArcSwap<ParsedConfigurations>,
}

impl ConfigurationCache {
    fn new(resource: &'static str) -> Self {
        Self { resource, current: ArcSwap::default() }
    }

    fn load(&self, environment: &dyn Environment) -> Arc<ParsedConfigurations> {
        let revision = environment.revision(self.resource);
        let current = self.current.load_full();
        if current.revision == Some(revision) {
            return current;
        }
        let objects = environment.configurations(self.resource);
        let webhooks = config::parse_webhooks(&objects);
        let next = Arc::new(ParsedConfigurations { revision: Some(revision), webhooks });
        self.current.store(next.clone());
        next
    }
}

/// Name of this admission step in the record of reinvocations.
const STEP: &str = "MutatingAdmissionWebhook";

/// The admission plugin.
pub struct Webhooks {
    environment: Arc<dyn Environment>,
    access_checker: Arc<dyn AccessChecker>,
    client: Arc<WebhookClient>,
    mutating: ConfigurationCache,
    validating: ConfigurationCache,
}

/// A webhook that matches the request.
struct Invocation<'a> {
    phase: Phase,
    webhook: &'a Webhook,
    /// Version in which the webhook receives the objects.
    gvr: Gvr,
    /// The new and the old object in that version, if it is not the version of the request.
    converted: Option<Arc<[Option<Value>; 2]>>,
    /// Index of the webhook in audit annotations: among all mutating webhooks, or among the validating ones that match.
    index: usize,
}

impl Invocation<'_> {
    /// The new and the old object that the webhook receives; `objects` are those of the request.
    fn objects<'o>(&'o self, objects: [Option<&'o Value>; 2]) -> [Option<&'o Value>; 2] {
        match self.converted.as_deref() {
            Some([object, old]) => [object.as_ref(), old.as_ref()],
            None => objects,
        }
    }
}

/// Phase of admission in which a webhook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Mutating,
    Validating,
}

impl Phase {
    /// Error for objects that cannot be converted for a webhook, regardless of its failure policy. The dispatcher of mutating
    /// webhooks wraps the error twice.
    fn conversion_error(self, reason: String) -> ApiError {
        let error = ApiError::internal(reason);
        if self == Phase::Mutating { ApiError::internal(error.message) } else { error }
    }
}

/// The configured webhooks of a phase, and the data that is needed to match them.
struct Candidates<'c> {
    configured: Arc<ParsedConfigurations>,
    /// The Namespace of the write.
    namespace: Option<&'c Value>,
    /// Other versions in which the resource is served.
    equivalents: Vec<Gvr>,
}

/// Context in which a webhook is matched with the attributes of a write.
#[derive(Clone, Copy)]
struct MatchContext<'c> {
    phase: Phase,
    /// See [`Candidates`].
    namespace: Option<&'c Value>,
    equivalents: &'c [Gvr],
    /// Webhooks that have matched so far and receive the same objects. A converted version of the objects is reused.
    matched: &'c [Invocation<'c>],
    /// Index of the webhook in audit annotations.
    index: usize,
}

impl Candidates<'_> {
    fn context<'c>(&'c self, phase: Phase, matched: &'c [Invocation<'c>], index: usize) -> MatchContext<'c> {
        MatchContext { phase, namespace: self.namespace, equivalents: &self.equivalents, matched, index }
    }
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
            mutating: ConfigurationCache::new("mutatingwebhookconfigurations"),
            validating: ConfigurationCache::new("validatingwebhookconfigurations"),
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

    fn has_rules_for(&self, cache: &ConfigurationCache, a: &Attributes<'_>) -> bool {
        if matching::is_exempt(&a.resource.gvr) {
            return false;
        }
        let (configured, equivalents) = (cache.load(&*self.environment), self.environment.equivalents(a));
        configured.webhooks.iter().any(|webhook| {
            matching::find_matching_version(&webhook.rules, webhook.matches_equivalents, a, &equivalents).is_some()
        })
    }

    /// Loads the webhooks and the data that is needed to match them; `None` if there are no webhooks.
    async fn load_candidates<'a>(
        &self,
        cache: &ConfigurationCache,
        a: &'a Attributes<'_>,
    ) -> ApiResult<Option<Candidates<'a>>> {
        let environment = &*self.environment;
        let configured = cache.load(environment);
        if configured.webhooks.is_empty() {
            return Ok(None);
        }
        let (namespace, equivalents) = (namespace_of(environment, a).await?, environment.equivalents(a));
        Ok(Some(Candidates { configured, namespace, equivalents }))
    }

    /// Matches the rules, selectors and conditions of a webhook with a request; `None` if the webhook is not called.
    /// `Err` rejects the request: the objects cannot be converted for the webhook, or a condition could not be evaluated
    /// under failure policy `Fail`.
    async fn match_webhook<'a>(
        &self,
        webhook: &'a Webhook,
        a: &Attributes<'_>,
        object: Option<&Value>,
        context: MatchContext<'_>,
    ) -> ApiResult<Option<Invocation<'a>>> {
        let MatchContext { phase, namespace, equivalents, matched, index } = context;
        let gvr = matching::find_matching_version(&webhook.rules, webhook.matches_equivalents, a, equivalents);
        let Some(gvr) = gvr.filter(|_| matching::selectors_match(&webhook.selectors, a, object, namespace)) else {
            return Ok(None);
        };
        let mut converted = matched.iter().find(|known| known.gvr == gvr).and_then(|known| known.converted.clone());
        if gvr != a.resource.gvr && converted.is_none() {
            let object = convert_to_version(&gvr, a, object).await.map_err(|reason| phase.conversion_error(reason))?;
            let old = convert_to_version(&gvr, a, a.old).await.map_err(|reason| phase.conversion_error(reason))?;
            converted = Some(Arc::new([object, old]));
        }
        let invocation = Invocation { phase, webhook, gvr, converted, index };
        let conditions_met = match webhook.conditions.is_empty() {
            true => Ok(true),
            // Conditions see the objects in the version that the webhook receives.
            false => self.evaluate_conditions(webhook, a, &invocation.gvr, invocation.objects([object, a.old])),
        };
        match conditions_met {
            Ok(true) => Ok(Some(invocation)),
            Ok(false) => Ok(None),
            Err(reason) if webhook.ignores_failure => {
                tracing::warn!(webhook = webhook.name, %reason, "ignoring a webhook whose match condition failed");
                Ok(None)
            }
            Err(reason) => Err(ApiError::forbidden(&a.resource.gvr.group, &a.resource.gvr.resource, a.name, reason)),
        }
    }

    /// Evaluates the match conditions of a webhook on the new and the old object.
    fn evaluate_conditions(
        &self,
        webhook: &Webhook,
        a: &Attributes<'_>,
        gvr: &Gvr,
        [object, old]: [Option<&Value>; 2],
    ) -> Result<bool, String> {
        let mut request = review::build_request(a, gvr, "", None, None);
        // Conditions see the kind in the webhook's version, but the resource in that of the request.
        request["resource"] = request["requestResource"].clone();
        let (user_authorizer, request_action) = expression::user_authorizer(&self.access_checker, a);
        let authorizer = Some((&user_authorizer, &request_action));
        let inputs = Inputs { object, old, request: &request, namespace: None, params: None, authorizer };
        with_base_scope(|base| expression::evaluate_conditions(&webhook.conditions, &inputs.scope(base)))
    }

    /// Calls a webhook and parses its response. `Ok(None)` means that it failed under failure policy `Ignore`.
    async fn call(
        &self,
        invocation: &Invocation<'_>,
        a: &Attributes<'_>,
        object: Option<&Value>,
    ) -> ApiResult<Option<AdmissionResponse>> {
        let webhook = invocation.webhook;
        if a.ctx.dry_run && !webhook.supports_dry_run {
            return Err(ApiError::bad_request(format!(
                "admission webhook {:?} does not support dry run",
                webhook.name
            )));
        }
        match self.send_review(invocation, a, object).await {
            Ok(response) => {
                annotations::record_returned(a, invocation, &response.audit_annotations);
                Ok(Some(response))
            }
            Err(reason) if webhook.ignores_failure => {
                let configuration = &webhook.configuration;
                tracing::warn!(webhook = webhook.name, configuration, %reason, "ignoring a failed webhook call");
                annotations::record_failed_open(a, invocation);
                Ok(None)
            }
            Err(reason) => Err(ApiError::internal(format!("failed calling webhook {:?}: {reason}", webhook.name))),
        }
    }

    async fn send_review(
        &self,
        invocation: &Invocation<'_>,
        a: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<AdmissionResponse, String> {
        let Invocation { webhook, gvr, .. } = invocation;
        let version =
            webhook.review_version.ok_or("webhook does not accept known AdmissionReview versions (v1, v1beta1)")?;
        let target = webhook.target.as_ref().map_err(|e| format!("failed to call webhook: {e}"))?;
        let [object, old] = invocation.objects([object, a.old]);
        let uid = uuid::Uuid::new_v4().to_string();
        let request = review::build_request(a, gvr, &uid, object, old);
        let response = self
            .client
            .post(target, &review::build_review(version, request), webhook.timeout)
            .await
            .map_err(|e| format!("failed to call webhook: {e}"))?;
        let is_mutating = invocation.phase == Phase::Mutating;
        review::parse_response(&response, version, &uid, is_mutating).map_err(|error| error.to_string())
    }

    async fn mutate_all(
        &self,
        a: &Attributes<'_>,
        object: &mut Option<&mut Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let Some(candidates) = self.load_candidates(&self.mutating, a).await? else { return Ok(()) };
        a.reinvocation.enter(STEP, object.as_deref());
        for (index, webhook) in candidates.configured.webhooks.iter().enumerate() {
            let context = candidates.context(Phase::Mutating, &[], index);
            let invocation = self.match_webhook(webhook, a, object.as_deref(), context).await?;
            let Some(invocation) = invocation else { continue };
            let key = format!("{}/{}", webhook.configuration, webhook.name);
            if !a.reinvocation.should_invoke(STEP, &key) {
                continue;
            }
            let before = object.as_deref().cloned();
            let result = self.mutate_one(&invocation, a, object, warnings).await;
            let has_changed = object.as_deref() != before.as_ref();
            annotations::record_mutation(a, &invocation, has_changed);
            result?;
            a.reinvocation.record_invocation(STEP, &key, has_changed, webhook.can_reinvoke);
        }
        a.reinvocation.leave(STEP, object.as_deref());
        Ok(())
    }

    /// Calls a mutating webhook and applies its patch to the object.
    async fn mutate_one(
        &self,
        invocation: &Invocation<'_>,
        a: &Attributes<'_>,
        object: &mut Option<&mut Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let Invocation { webhook, gvr, .. } = invocation;
        let Some(mut response) = self.call(invocation, a, object.as_deref()).await? else {
            return Ok(());
        };
        warnings.append(&mut response.warnings);
        if let Some(denial) = response.denial {
            return Err(denial_error(&webhook.name, &denial));
        }
        if response.patch.is_empty() {
            return Ok(());
        }
        let Some(object) = object.as_deref_mut() else {
            return Err(ApiError::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                webhook.name
            )));
        };
        let [before, _] = invocation.objects([Some(&*object), None]);
        let before = before.unwrap_or(&Value::Null);
        let mut patched = patching::apply_patch(before, &response.patch).map_err(ApiError::internal)?;
        if !a.resource.is_custom() || a.subresource_of_other_kind().is_some() {
            patched = patching::decode_patched(before, patched).map_err(ApiError::internal)?;
        } else if before.get("kind").is_some() {
            patching::check_kind(&patched).map_err(ApiError::internal)?;
        }
        annotations::record_patch(a, invocation, &response.patch);
        *object = convert_to_request_version(gvr, a, patched).await?;
        Ok(())
    }

    async fn validate_all(
        &self,
        a: &Attributes<'_>,
        object: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        let Some(candidates) = self.load_candidates(&self.validating, a).await? else { return Ok(()) };
        let mut invocations: Vec<Invocation<'_>> = Vec::new();
        for webhook in &candidates.configured.webhooks {
            let context = candidates.context(Phase::Validating, &invocations, invocations.len());
            let invocation = self.match_webhook(webhook, a, object, context).await?;
            invocations.extend(invocation);
        }
        let calls = invocations.iter().map(|invocation| self.call(invocation, a, object));
        let responses = futures::future::join_all(calls).await;
        let mut first_error = None;
        for (invocation, response) in invocations.iter().zip(responses) {
            match response {
                Ok(Some(mut response)) => {
                    warnings.append(&mut response.warnings);
                    if let Some(denial) = response.denial {
                        first_error.get_or_insert(denial_error(&invocation.webhook.name, &denial));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

#[async_trait]
impl Admission for Webhooks {
    async fn mutate(&self, Mutation { attributes: a, mut object, warnings }: Mutation<'_>) -> ApiResult<()> {
        if matching::is_exempt(&a.resource.gvr)
            || (object.is_none() && !matches!(a.operation, Operation::Delete | Operation::Connect))
        {
            return Ok(());
        }
        self.mutate_all(a, &mut object, warnings).await
    }

    async fn validate(&self, Validation { attributes: a, object, warnings }: Validation<'_>) -> ApiResult<()> {
        if matching::is_exempt(&a.resource.gvr) {
            return Ok(());
        }
        self.validate_all(a, object, warnings).await
    }
}

/// The error for a denied write: code, reason and details from the webhook, and its message prefixed with the
/// webhook's name.
fn denial_error(webhook: &str, status: &Value) -> ApiError {
    let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let prefix = format!("admission webhook {webhook:?} denied the request");
    let (message, reason) = (text("message"), text("reason"));
    let code = status.get("code").and_then(Value::as_u64).and_then(|c| u16::try_from(c).ok()).filter(|c| *c >= 400);
    let message = match (message.as_str(), reason.as_str()) {
        ("", "") => format!("{prefix} without explanation"),
        ("", reason) => format!("{prefix}: {reason}"),
        (message, _) => format!("{prefix}: {message}"),
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
