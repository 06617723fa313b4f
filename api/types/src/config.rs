//! config.karmada.io/v1alpha1: interpretation of kinds by Lua scripts or webhooks, and the messages to and from
//! interpreter webhooks. Written by users; read by the resource interpreter.

use crate::object::{api_structs, kinds, string_enum};
use crate::work::{AggregatedStatusItem, Component, ReplicaRequirements};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde::{Deserialize, Serialize};

/// The API group of this module.
pub const GROUP: &str = "config.karmada.io";

kinds! { "config.karmada.io", "v1alpha1";
    /// ResourceInterpreterCustomization contains Lua scripts that interpret one kind.
    ResourceInterpreterCustomization(Cluster, "resourceinterpretercustomizations") {
        spec: ResourceInterpreterCustomizationSpec
    }

    /// ResourceInterpreterWebhookConfiguration contains webhooks that interpret kinds.
    ResourceInterpreterWebhookConfiguration(Cluster, "resourceinterpreterwebhookconfigurations") {
        webhooks: Vec<ResourceInterpreterWebhook>
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
        pub retention?: LuaRule,
        /// ReplicaResource returns the replicas and their requirements: GetReplicas(obj).
        pub replica_resource?: LuaRule,
        /// ComponentResource returns the replicas and requirements of several pod templates: GetComponents(obj).
        pub component_resource?: LuaRule,
        /// ReplicaRevision sets the number of replicas: ReviseReplica(obj, replica).
        pub replica_revision?: LuaRule,
        /// StatusReflection returns the status to reflect: ReflectStatus(obj).
        pub status_reflection?: LuaRule,
        /// StatusAggregation aggregates the statuses of the member clusters: AggregateStatus(desiredObj,
        /// statusItems).
        pub status_aggregation?: LuaRule,
        /// HealthInterpretation returns whether the object is healthy: InterpretHealth(obj).
        pub health_interpretation?: LuaRule,
        /// DependencyInterpretation returns the referenced objects: GetDependencies(obj).
        pub dependency_interpretation?: LuaRule,
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
        pub rules(skip): Vec<RuleWithOperations>,
        /// TimeoutSeconds is the timeout of a call in seconds.
        pub timeout_seconds?: i32,
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
        pub request?: ResourceInterpreterRequest,
        pub response?: ResourceInterpreterResponse,
    }

    /// ResourceInterpreterRequest is the request to an interpreter webhook.
    pub struct ResourceInterpreterRequest {
        pub uid: String,
        pub kind: GroupVersionKind,
        pub name: String,
        pub namespace(skip): String,
        pub operation: InterpreterOperation,
        /// Object is the object to interpret.
        pub object?: RawExtension,
        /// ObservedObject is the object in the member cluster; it is set for Retain.
        pub observed_object?: RawExtension,
        /// DesiredReplicas is the number of replicas to set; it is set for ReviseReplica.
        #[serde(rename = "replicas")]
        pub desired_replicas?: i32,
        /// AggregatedStatus contains the statuses of the member clusters; it is set for AggregateStatus.
        pub aggregated_status(skip): Vec<AggregatedStatusItem>,
    }

    /// ResourceInterpreterResponse is the response of an interpreter webhook.
    pub struct ResourceInterpreterResponse {
        pub uid: String,
        pub successful: bool,
        /// Status contains the error if the request failed.
        pub status?: RequestStatus,
        /// Patch is the change of the object.
        #[schemars(with = "Option<String>")]
        pub patch?: ByteString,
        /// PatchType is the type of the patch; it must be JSONPatch.
        pub patch_type?: String,
        pub replica_requirements?: ReplicaRequirements,
        pub replicas?: i32,
        pub components(skip): Vec<Component>,
        pub dependencies(skip): Vec<DependentObjectReference>,
        pub raw_status?: RawExtension,
        pub healthy?: bool,
    }

    /// RequestStatus is the error of a failed request.
    pub struct RequestStatus {
        pub message(skip): String,
        pub code(skip): i32,
    }

    /// DependentObjectReference references objects that another object needs, by name or by labels.
    pub struct DependentObjectReference {
        pub api_version: String,
        pub kind: String,
        pub namespace(skip): String,
        pub name(skip): String,
        pub label_selector?: LabelSelector,
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
