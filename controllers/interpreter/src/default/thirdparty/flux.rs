//! Flux: HelmReleases, Kustomizations and their sources.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::status::MemberStatus;
use super::accessors::{count, list, value_at};
use super::status::{
    is_true, last_text, last_value, merge_conditions, observed_generation, set_or_remove, sum, template_status,
    with_generations,
};
use super::{NO_RULES, RuleError, ThirdPartyKind};
use crowsnest_apimachinery::unstructured::{namespace, set, text};
use crowsnest_plan::dependencies::Dependency;

const SOURCES_V1BETA2: &str = "source.toolkit.fluxcd.io/v1beta2";

const KIND: ThirdPartyKind = ThirdPartyKind { retain: Some(retain_suspension), ..NO_RULES };

pub(super) static KINDS: [ThirdPartyKind; 7] = [
    ThirdPartyKind {
        api_version: "helm.toolkit.fluxcd.io/v2beta1",
        kind: "HelmRelease",
        reflect: Some(|member| HELM_RELEASE.reflect(member)),
        aggregate: Some(|template, members, _| Ok(HELM_RELEASE.aggregate(template, members))),
        health: Some(|member| is_ready(member, &["ReconciliationSucceeded"])),
        dependencies: Some(release_dependencies),
        ..KIND
    },
    ThirdPartyKind {
        api_version: "kustomize.toolkit.fluxcd.io/v1",
        kind: "Kustomization",
        reflect: Some(|member| KUSTOMIZATION.reflect(member)),
        aggregate: Some(|template, members, _| Ok(KUSTOMIZATION.aggregate(template, members))),
        health: Some(|member| is_ready(member, &["ReconciliationSucceeded"])),
        dependencies: Some(|template| {
            dependencies(template, &[&["decryption", "secretRef"], &["kubeConfig", "secretRef"]], true)
        }),
        ..KIND
    },
    ThirdPartyKind {
        api_version: "source.toolkit.fluxcd.io/v1",
        kind: "GitRepository",
        reflect: Some(|member| {
            let fields =
                ["conditions", "artifact", "observedGeneration", "observedIgnore", "observedRecurseSubmodules"];
            with_generations(member, &fields)
        }),
        aggregate: Some(|template, members, _| Ok(aggregate_source(template, members, &[]))),
        health: Some(|member| is_ready(member, &["Succeeded"])),
        dependencies: Some(|template| dependencies(template, &[&["secretRef"], &["verify", "secretRef"]], false)),
        ..KIND
    },
    ThirdPartyKind {
        api_version: SOURCES_V1BETA2,
        kind: "Bucket",
        reflect: Some(|member| {
            let fields = ["conditions", "artifact", "observedIgnore", "observedGeneration", "url"];
            with_generations(member, &fields)
        }),
        aggregate: Some(|template, members, _| Ok(aggregate_source(template, members, &["url"]))),
        health: Some(|member| is_ready(member, &["Succeeded"])),
        dependencies: Some(|template| dependencies(template, &[&["secretRef"]], false)),
        ..KIND
    },
    ThirdPartyKind {
        api_version: SOURCES_V1BETA2,
        kind: "HelmChart",
        // As in Karmada, the members' observed generation is not reflected, so the template's never changes.
        reflect: Some(|member| {
            let fields = ["artifact", "conditions", "observedChartName", "observedSourceArtifactRevision", "url"];
            with_generations(member, &fields)
        }),
        aggregate: Some(|template, members, _| {
            let texts = ["observedChartName", "observedSourceArtifactRevision", "url"];
            Ok(aggregate_source(template, members, &texts))
        }),
        health: Some(|member| is_ready(member, &["Succeeded", "ChartPullSucceeded"])),
        dependencies: Some(|template| dependencies(template, &[&["verify", "secretRef"]], false)),
        ..KIND
    },
    ThirdPartyKind {
        api_version: SOURCES_V1BETA2,
        kind: "HelmRepository",
        reflect: Some(|member| with_generations(member, &["artifact", "conditions", "observedGeneration", "url"])),
        aggregate: Some(|template, members, _| Ok(aggregate_source(template, members, &["url"]))),
        health: Some(|member| is_ready(member, &["Succeeded"])),
        dependencies: Some(|template| dependencies(template, &[&["secretRef"]], false)),
        ..KIND
    },
    ThirdPartyKind {
        api_version: SOURCES_V1BETA2,
        kind: "OCIRepository",
        reflect: Some(|member| {
            let fields =
                ["artifact", "conditions", "url", "observedGeneration", "observedIgnore", "observedLayerSelector"];
            with_generations(member, &fields)
        }),
        aggregate: Some(|template, members, _| Ok(aggregate_source(template, members, &["url"]))),
        health: Some(|member| is_ready(member, &["Succeeded"])),
        dependencies: Some(|template| {
            dependencies(template, &[&["secretRef"], &["verify", "secretRef"], &["certSecretRef"]], true)
        }),
        ..KIND
    },
];

/// Retains `spec.suspend`, which is controlled in the member.
pub(super) fn retain_suspension(desired: &mut Value, observed: &Value) {
    if let Some(suspend) = value_at(observed, &["spec", "suspend"]) {
        set(desired, &["spec", "suspend"], suspend.clone());
    }
}

fn is_ready(member: &Value, reasons: &[&str]) -> Result<bool, RuleError> {
    let is_ready = |condition: &Value| is_true(condition, "Ready") && reasons.contains(&text(condition, &["reason"]));
    Ok(list(member, &["status", "conditions"]).any(is_ready))
}

/// A kind that applies a source, with its revisions and failure counters.
struct Applier {
    texts: &'static [&'static str],
    /// Taken from the last member that has them, even if empty.
    values: &'static [&'static str],
    /// Added to the template's values, if it has any.
    failures: &'static [&'static str],
}

const HELM_RELEASE: Applier = Applier {
    texts: &["lastAttemptedRevision", "lastAppliedRevision", "lastAttemptedValuesChecksum", "helmChart"],
    values: &["lastReleaseRevision"],
    failures: &["failures", "upgradeFailures", "installFailures"],
};

const KUSTOMIZATION: Applier =
    Applier { texts: &["lastAttemptedRevision", "lastAppliedRevision"], values: &[], failures: &[] };

impl Applier {
    fn reflect(&self, member: &Value) -> Value {
        let fields = [self.texts, self.values, self.failures, &["conditions", "observedGeneration"]].concat();
        with_generations(member, &fields)
    }

    fn aggregate(&self, template: &Value, members: &[MemberStatus<'_>]) -> Map<String, Value> {
        let mut status = template_status(template);
        let texts = self.texts.iter().map(|field| (field, last_text(members, field)));
        let values = self.values.iter().map(|field| (field, last_value(members, field)));
        for (field, value) in texts.chain(values) {
            if let Some(value) = value {
                set_or_remove(&mut status, field, Some(value.clone()));
            }
        }
        for field in self.failures {
            if value_at(template, &["status", field]).is_some() {
                let failures = count(template, &["status", field]) + sum(members, &[field]);
                set_or_remove(&mut status, field, Some(failures));
            }
        }
        set_or_remove(&mut status, "observedGeneration", Some(observed_generation(template, members)));
        set_or_remove(&mut status, "conditions", Some(merge_conditions(members)));
        status
    }
}

/// The last artifact and texts of all members.
fn aggregate_source(template: &Value, members: &[MemberStatus<'_>], texts: &[&str]) -> Map<String, Value> {
    let mut status = template_status(template);
    set_or_remove(&mut status, "artifact", last_value(members, "artifact").cloned());
    for field in texts {
        set_or_remove(&mut status, field, Some(last_text(members, field).cloned().unwrap_or_else(|| Value::from(""))));
    }
    set_or_remove(&mut status, "observedGeneration", Some(observed_generation(template, members)));
    set_or_remove(&mut status, "conditions", Some(merge_conditions(members)));
    status
}

fn dependencies(template: &Value, secrets: &[&[&str]], with_account: bool) -> Vec<Dependency> {
    let spec = template.get("spec").unwrap_or(&Value::Null);
    let secrets = secrets.iter().map(|path| text(spec, [*path, &["name"]].concat().as_slice()));
    let account = with_account.then(|| text(spec, &["serviceAccountName"]));
    dependencies_by_name(template, "Secret", secrets)
        .chain(dependencies_by_name(template, "ServiceAccount", account))
        .collect()
}

fn release_dependencies(template: &Value) -> Vec<Dependency> {
    let values_of = |kind| {
        let values = list(template, &["spec", "valuesFrom"]).filter(move |source| text(source, &["kind"]) == kind);
        dependencies_by_name(template, kind, values.map(|source| text(source, &["name"])))
    };
    let mut dependencies =
        dependencies(template, &[&["chart", "spec", "verify", "secretRef"], &["kubeConfig", "secretRef"]], true);
    dependencies.extend(values_of("Secret").chain(values_of("ConfigMap")));
    dependencies
}

fn dependencies_by_name<'a>(
    template: &'a Value,
    kind: &'static str,
    names: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = Dependency> {
    let names: BTreeSet<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    names.into_iter().map(move |name| Dependency::core(kind, namespace(template), name))
}
