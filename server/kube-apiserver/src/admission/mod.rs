//! Admission plugins: they can change or reject a write after authorization.
//!
//! [`plugins`] returns them in order; each implements the registry's [`Admission`].

pub mod accounts;
#[cfg(test)]
mod audit_tests;
mod certificates;
#[cfg(test)]
mod certificates_tests;
mod environment;
mod ingress;
pub mod limits;
pub mod policy;
pub mod priority;
pub mod protection;
pub mod quota;
mod runtime;
mod taints;
pub mod tolerations;

use std::sync::Arc;

use crowsnest_admission_plugins::Environment;
use crowsnest_admission_plugins::policy::{MutatingPolicies, ValidatingPolicies};
use crowsnest_admission_plugins::webhook::Webhooks;
use crowsnest_apiserver::outbound::OutboundClients;
use crowsnest_cel::authorizer::AccessChecker;
use crowsnest_registry::Registry;
use crowsnest_registry::admission::Admission;
use crowsnest_registry::authz::Authorizer;

pub use crowsnest_admission_plugins::webhook::client::WebhookClient;
pub use crowsnest_apiserver::outbound::Target;

/// A plugin that can be disabled, by its name in kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    LimitRanger,
    TaintNodesByCondition,
    Priority,
    DefaultTolerationSeconds,
    RuntimeClass,
    CertificateApproval,
    CertificateSigning,
    CertificateSubjectRestriction,
    DefaultIngressClass,
    MutatingAdmissionPolicy,
    ValidatingAdmissionPolicy,
    ResourceQuota,
}

impl Plugin {
    const ALL: [Plugin; 12] = [
        Plugin::LimitRanger,
        Plugin::TaintNodesByCondition,
        Plugin::Priority,
        Plugin::DefaultTolerationSeconds,
        Plugin::RuntimeClass,
        Plugin::CertificateApproval,
        Plugin::CertificateSigning,
        Plugin::CertificateSubjectRestriction,
        Plugin::DefaultIngressClass,
        Plugin::MutatingAdmissionPolicy,
        Plugin::ValidatingAdmissionPolicy,
        Plugin::ResourceQuota,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Plugin::LimitRanger => "LimitRanger",
            Plugin::TaintNodesByCondition => "TaintNodesByCondition",
            Plugin::Priority => "Priority",
            Plugin::DefaultTolerationSeconds => "DefaultTolerationSeconds",
            Plugin::RuntimeClass => "RuntimeClass",
            Plugin::CertificateApproval => "CertificateApproval",
            Plugin::CertificateSigning => "CertificateSigning",
            Plugin::CertificateSubjectRestriction => "CertificateSubjectRestriction",
            Plugin::DefaultIngressClass => "DefaultIngressClass",
            Plugin::MutatingAdmissionPolicy => "MutatingAdmissionPolicy",
            Plugin::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Plugin::ResourceQuota => "ResourceQuota",
        }
    }
}

impl std::str::FromStr for Plugin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("admission plugin {text:?} is unknown or cannot be disabled; optional plugins: {names}")
        })
    }
}

/// The plugins of every chain except the `disabled` ones, in kube-apiserver's order: limits, taints, priority,
/// tolerations, classes, certificates, policies, webhooks, quota. Quota is last, because its charge is not undone if a
/// later plugin rejects the write. Validating policies precede validating webhooks.
pub fn plugins(
    registry: &Arc<Registry>,
    authorizer: &Arc<Authorizer>,
    outbound: &Arc<OutboundClients>,
    disabled: &[Plugin],
) -> Vec<Arc<dyn Admission>> {
    let access_checker: Arc<dyn AccessChecker> = authorizer.clone();
    let client = Arc::new(WebhookClient::new(outbound.clone()));
    let environment: Arc<dyn Environment> = Arc::new(environment::RegistryEnvironment::new(registry));
    let mutating = MutatingPolicies::new(environment.clone(), access_checker.clone());
    let validating = ValidatingPolicies::new(environment.clone(), access_checker.clone());
    let webhooks = Webhooks::new(environment, access_checker, client);
    let chain: [(Option<Plugin>, Arc<dyn Admission>); 13] = [
        (Some(Plugin::LimitRanger), Arc::new(limits::LimitRanger(Arc::downgrade(registry)))),
        (Some(Plugin::TaintNodesByCondition), Arc::new(taints::TaintNodesByCondition)),
        (Some(Plugin::Priority), Arc::new(priority::Priority::new(registry))),
        (Some(Plugin::DefaultTolerationSeconds), Arc::new(tolerations::DefaultTolerationSeconds)),
        (Some(Plugin::RuntimeClass), Arc::new(runtime::RuntimeClass(Arc::downgrade(registry)))),
        (Some(Plugin::CertificateApproval), Arc::new(certificates::CertificateApproval(authorizer.clone()))),
        (Some(Plugin::CertificateSigning), Arc::new(certificates::CertificateSigning(authorizer.clone()))),
        (Some(Plugin::CertificateSubjectRestriction), Arc::new(certificates::CertificateSubjectRestriction)),
        (Some(Plugin::DefaultIngressClass), Arc::new(ingress::DefaultIngressClass(Arc::downgrade(registry)))),
        (Some(Plugin::MutatingAdmissionPolicy), Arc::new(mutating)),
        (Some(Plugin::ValidatingAdmissionPolicy), Arc::new(validating)),
        (None, Arc::new(webhooks)),
        (Some(Plugin::ResourceQuota), Arc::new(quota::ResourceQuota(Arc::downgrade(registry)))),
    ];
    let enabled = chain.into_iter().filter(|(name, _)| name.is_none_or(|name| !disabled.contains(&name)));
    enabled.map(|(_, plugin)| plugin).collect()
}
