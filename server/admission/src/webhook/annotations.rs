//! Audit annotations about the calls of webhooks, with the keys and values of kube-apiserver.

use crowsnest_apimachinery::field::go_json;
use crowsnest_registry::admission::Attributes;
use serde::Serialize;
use serde_json::Value;

use super::{Invocation, Phase};

/// Key prefix of an annotation that records whether a mutating webhook changed the object.
const MUTATION: &str = "mutation.webhook.admission.k8s.io";
/// Key prefix of an annotation with the patch of a mutating webhook.
const PATCH: &str = "patch.webhook.admission.k8s.io";
/// Key prefixes of annotations that record that the failed call of a webhook was ignored.
const MUTATION_FAILED_OPEN: &str = "failed-open.mutation.webhook.admission.k8s.io";
const VALIDATION_FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io";

/// Value of a [`MUTATION`] annotation, with the fields in the order in which kube-apiserver writes them.
#[derive(Serialize)]
struct MutationAnnotation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

/// Value of a [`PATCH`] annotation, with the fields in the order in which kube-apiserver writes them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchAnnotation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a [Value],
    patch_type: &'static str,
}

/// Records whether a mutating webhook changed the object.
pub(super) fn record_mutation(a: &Attributes<'_>, invocation: &Invocation<'_>, mutated: bool) {
    let (configuration, webhook) = (&invocation.webhook.configuration, &invocation.webhook.name);
    let value = go_json(&MutationAnnotation { configuration, webhook, mutated });
    a.annotate(&key(MUTATION, a, invocation), &value);
}

/// Records the patch of a mutating webhook if request bodies are logged. The patch counts towards their limits of size
/// and memory.
pub(super) fn record_patch(a: &Attributes<'_>, invocation: &Invocation<'_>, patch: &[Value]) {
    let Some(record) = a.ctx.record.as_ref().filter(|record| record.logs_request_body()) else { return };
    let (configuration, webhook) = (&invocation.webhook.configuration, &invocation.webhook.name);
    let value = go_json(&PatchAnnotation { configuration, webhook, patch, patch_type: "JSONPatch" });
    if record.reserve_body(value.len()) {
        a.annotate(&key(PATCH, a, invocation), &value);
    }
}

/// Records that the failed call of a webhook was ignored.
pub(super) fn record_failed_open(a: &Attributes<'_>, invocation: &Invocation<'_>) {
    let key = match invocation.phase {
        Phase::Mutating => key(MUTATION_FAILED_OPEN, a, invocation),
        // Validating webhooks have one round.
        Phase::Validating => format!("{VALIDATION_FAILED_OPEN}/round_0_index_{}", invocation.index),
    };
    a.annotate(&key, &invocation.webhook.name);
}

/// Records the annotations that a webhook returned.
pub(super) fn record_returned(a: &Attributes<'_>, invocation: &Invocation<'_>, annotations: &[(String, String)]) {
    for (key, value) in annotations {
        a.annotate(&format!("{}/{key}", invocation.webhook.name), value);
    }
}

/// Key for a call in the current round of mutating admission.
fn key(prefix: &str, a: &Attributes<'_>, invocation: &Invocation<'_>) -> String {
    format!("{prefix}/round_{}_index_{}", a.reinvocation.round(), invocation.index)
}
