//! config.karmada.io/v1alpha1: interpretation of kinds by Lua scripts or webhooks, and the messages to and from
//! interpreter webhooks. Written by users; read by the resource interpreter.

use crate::object::{api_structs, is_default, kind, string_enum};
use crate::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::{Deserialize, Serialize};

/// The API group of this module.
pub const GROUP: &str = "config.karmada.io";

kind! {
    /// ResourceInterpreterCustomization contains Lua scripts that interpret one kind.
    ResourceInterpreterCustomization, Cluster, "config.karmada.io", "v1alpha1", "resourceinterpretercustomizations" {
        spec: ResourceInterpreterCustomizationSpec,
    }
}

kind! {
    /// ResourceInterpreterWebhookConfiguration contains webhooks that interpret kinds.
    ResourceInterpreterWebhookConfiguration, Cluster, "config.karmada.io", "v1alpha1",
    "resourceinterpreterwebhookconfigurations" {
        webhooks: Vec<ResourceInterpreterWebhook>,
    }
}

api_structs! {
    /// ResourceInterpreterCustomizationSpec defines the kind and its scripts.
    pub struct ResourceInterpreterCustomizationSpec {
        pub target: CustomizationTarget,
        pub customizations: CustomizationRules,
    }

    /// CustomizationTarget is the kind to interpret.
    pub struct CustomizationTarget {
        pub api_version: String,
        pub kind: String,
    }

    /// CustomizationRules are the scripts by operation. Operations without a script are left to the other
    /// interpreters.
    pub struct CustomizationRules {
        /// Retention retains values that are set in the member cluster: Retain(desiredObj, observedObj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub retention: Option<LuaRule>,
        /// ReplicaResource returns the replicas and their requirements: GetReplicas(obj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_resource: Option<LuaRule>,
        /// ComponentResource returns the replicas and requirements of several pod templates: GetComponents(obj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub component_resource: Option<LuaRule>,
        /// ReplicaRevision sets the number of replicas: ReviseReplica(obj, replica).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_revision: Option<LuaRule>,
        /// StatusReflection returns the status to reflect: ReflectStatus(obj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status_reflection: Option<LuaRule>,
        /// StatusAggregation aggregates the statuses of the member clusters: AggregateStatus(desiredObj,
        /// statusItems).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status_aggregation: Option<LuaRule>,
        /// HealthInterpretation returns whether the object is healthy: InterpretHealth(obj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health_interpretation: Option<LuaRule>,
        /// DependencyInterpretation returns the referenced objects: GetDependencies(obj).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dependency_interpretation: Option<LuaRule>,
    }

    /// LuaRule is a Lua script.
    pub struct LuaRule {
        pub lua_script: String,
    }

    /// ResourceInterpreterWebhook is a webhook and the kinds and operations that it interprets.
    pub struct ResourceInterpreterWebhook {
        /// Name is the fully qualified name of the webhook.
        pub name: String,
        /// ClientConfig defines how the webhook is called.
        pub client_config: WebhookClientConfig,
        /// Rules are the kinds and operations that the webhook interprets.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub rules: Vec<RuleWithOperations>,
        /// TimeoutSeconds is the timeout of a call in seconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub timeout_seconds: Option<i32>,
        /// InterpreterContextVersions are the supported versions of ResourceInterpreterContext, in order of
        /// preference.
        pub interpreter_context_versions: Vec<String>,
    }

    /// RuleWithOperations are operations on kinds.
    pub struct RuleWithOperations {
        pub operations: Vec<InterpreterOperation>,
        pub api_groups: Vec<String>,
        pub api_versions: Vec<String>,
        pub kinds: Vec<String>,
    }

    /// ResourceInterpreterContext is a request to an interpreter webhook or its response. It is never stored.
    pub struct ResourceInterpreterContext {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub request: Option<ResourceInterpreterRequest>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub response: Option<ResourceInterpreterResponse>,
    }

    /// ResourceInterpreterRequest is the request to an interpreter webhook.
    pub struct ResourceInterpreterRequest {
        pub uid: String,
        pub kind: GroupVersionKind,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub operation: InterpreterOperation,
        /// Object is the object to interpret.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub object: Option<RawExtension>,
        /// ObservedObject is the object in the member cluster; it is set for Retain.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub observed_object: Option<RawExtension>,
        /// DesiredReplicas is the number of replicas to set; it is set for ReviseReplica.
        #[serde(skip_serializing_if = "Option::is_none", rename = "replicas")]
        pub desired_replicas: Option<i32>,
        /// AggregatedStatus contains the statuses of the member clusters; it is set for AggregateStatus.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// ResourceInterpreterResponse is the response of an interpreter webhook.
    pub struct ResourceInterpreterResponse {
        pub uid: String,
        pub successful: bool,
        /// Status contains the error if the request failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub status: Option<RequestStatus>,
        /// Patch is the change of the object.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        pub patch: Option<ByteString>,
        /// PatchType is the type of the patch; it must be JSONPatch.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub patch_type: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ReplicaRequirements>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replicas: Option<i32>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<Component>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub dependencies: Vec<DependentObjectReference>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub raw_status: Option<RawExtension>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub healthy: Option<bool>,
    }

    /// RequestStatus is the error of a failed request.
    pub struct RequestStatus {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub message: String,
        #[serde(skip_serializing_if = "is_default")]
        pub code: i32,
    }

    /// DependentObjectReference references objects that another object needs, by name or by labels.
    pub struct DependentObjectReference {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub label_selector: Option<LabelSelector>,
    }
}

impl CustomizationRules {
    /// The script of each operation; `None` if it is unset or empty.
    pub fn scripts(&self) -> [(InterpreterOperation, Option<&str>); 8] {
        use InterpreterOperation as Operation;
        fn script(rule: &Option<LuaRule>) -> Option<&str> {
            rule.as_ref().map(|rule| rule.lua_script.as_str()).filter(|script| !script.is_empty())
        }
        [
            (Operation::Retain, script(&self.retention)),
            (Operation::InterpretReplica, script(&self.replica_resource)),
            (Operation::InterpretComponent, script(&self.component_resource)),
            (Operation::ReviseReplica, script(&self.replica_revision)),
            (Operation::InterpretStatus, script(&self.status_reflection)),
            (Operation::AggregateStatus, script(&self.status_aggregation)),
            (Operation::InterpretHealth, script(&self.health_interpretation)),
            (Operation::InterpretDependency, script(&self.dependency_interpretation)),
        ]
    }
}

/// The kind of an object in requests to interpreter webhooks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

string_enum! { open
    /// InterpreterOperation is an operation of an interpreter.
    InterpreterOperation {
        All = "*",
        InterpretReplica = "InterpretReplica",
        InterpretComponent = "InterpretComponent",
        ReviseReplica = "ReviseReplica",
        InterpretStatus = "InterpretStatus",
        Prune = "Prune",
        Retain = "Retain",
        AggregateStatus = "AggregateStatus",
        InterpretHealth = "InterpretHealth",
        InterpretDependency = "InterpretDependency",
    }
}
