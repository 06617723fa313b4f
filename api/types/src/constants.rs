//! Constants of the Karmada APIs: labels, annotations, taints, finalizers, conditions, event reasons. Other tools
//! depend on them, so they must not change.
//!
//! Constants whose description begins with "Crowsnest" have no counterpart in Karmada. Their description names the kinds
//! that have them.

/// Field manager of Crowsnest's agent when it reports the tokens of its cluster.
pub const AGENT_FIELD_MANAGER: &str = "crowsnest-agent";

/// Labels.
pub mod label {
    pub const PROPAGATION_POLICY_PERMANENT_ID: &str = "propagationpolicy.karmada.io/permanent-id";
    pub const CLUSTER_PROPAGATION_POLICY_PERMANENT_ID: &str = "clusterpropagationpolicy.karmada.io/permanent-id";
    pub const RESOURCE_BINDING_PERMANENT_ID: &str = "resourcebinding.karmada.io/permanent-id";
    pub const CLUSTER_RESOURCE_BINDING_PERMANENT_ID: &str = "clusterresourcebinding.karmada.io/permanent-id";
    pub const WORK_PERMANENT_ID: &str = "work.karmada.io/permanent-id";
    pub const MULTI_CLUSTER_SERVICE_PERMANENT_ID: &str = "multiclusterservice.karmada.io/permanent-id";
    /// `true` on managed objects in member clusters.
    pub const MANAGED: &str = "karmada.io/managed";
    /// `true` on objects of the control plane's components.
    pub const SYSTEM: &str = "karmada.io/system";
    /// The controller that manages a binding without a policy.
    pub const BINDING_MANAGED_BY: &str = "binding.karmada.io/managed-by";
    /// The kind of object, other than a policy, that has claimed a template.
    pub const RESOURCE_TEMPLATE_CLAIMED_BY: &str = "resourcetemplate.karmada.io/claimed-by";
    /// `true`: the replicas in member clusters are retained.
    pub const RETAIN_REPLICAS: &str = "resourcetemplate.karmada.io/retain-replicas";
    /// `Always`: the object cannot be deleted.
    pub const DELETION_PROTECTED: &str = "resourcetemplate.karmada.io/deletion-protected";
    /// `true` on namespaces that are not propagated automatically.
    pub const NAMESPACE_SKIP_AUTO_PROPAGATION: &str = "namespace.karmada.io/skip-auto-propagation";
    /// Prefix of a label key that ends with a hash of the binding that depends on this one.
    pub const DEPENDED_BY_PREFIX: &str = "resourcebinding.karmada.io/depended-by-";
    pub const ENDPOINT_SLICE_NAMESPACE: &str = "endpointslice.karmada.io/namespace";
    pub const ENDPOINT_SLICE_NAME: &str = "endpointslice.karmada.io/name";
    pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.karmada.io/managed-by";
    pub const MULTI_CLUSTER_SERVICE_NAMESPACE: &str = "multiclusterservice.karmada.io/namespace";
    pub const MULTI_CLUSTER_SERVICE_NAME: &str = "multiclusterservice.karmada.io/name";
    pub const FEDERATED_RESOURCE_QUOTA_NAMESPACE: &str = "federatedresourcequota.karmada.io/namespace";
    pub const FEDERATED_RESOURCE_QUOTA_NAME: &str = "federatedresourcequota.karmada.io/name";
    /// `rbac-defaults` on roles created at startup.
    pub const BOOTSTRAPPING: &str = "karmada.io/bootstrapping";

    pub const SYSTEM_VALUE: &str = "true";
    pub const RETAIN_REPLICAS_VALUE: &str = "true";
    pub const DELETION_PROTECTED_ALWAYS: &str = "Always";
    pub const ENDPOINT_SLICE_CONTROLLER: &str = "endpointslice-controller.karmada.io";
    pub const ENDPOINT_SLICE_DISPATCH_CONTROLLER: &str = "endpointslice-dispatch-controller.karmada.io";
    pub const BOOTSTRAPPING_RBAC_DEFAULTS: &str = "rbac-defaults";
}

/// Annotations.
pub mod annotation {
    /// Crowsnest; on Clusters: time limit for the member's response head, in seconds.
    pub const RESPONSE_TIMEOUT: &str = "proxy.crowsnest.io/answer-within-seconds";
    /// Crowsnest; on pull-mode Clusters: `agent` if the cluster can be reached only through its agent.
    pub const REACHED_THROUGH: &str = "fleet.crowsnest.io/reached-through";
    pub const REACHED_THROUGH_AGENT: &str = "agent";
    /// Crowsnest; on Clusters: `disabled` forbids sessions (exec, attach, port-forward, proxy) into the member's
    /// pods and nodes.
    pub const EXEC: &str = "proxy.crowsnest.io/exec";
    pub const EXEC_ENABLED: &str = "enabled";
    pub const EXEC_DISABLED: &str = "disabled";
    /// Crowsnest; on Clusters: the attributes of a caller that Crowsnest's account may impersonate in the member.
    /// `whole`: user, groups, UID and extra; without the annotation or with another value: user and groups.
    pub const IMPERSONATES: &str = "proxy.crowsnest.io/impersonates";
    pub const IMPERSONATES_ALL_ATTRIBUTES: &str = "whole";
    /// Crowsnest; on Clusters that were joined without cluster-admin: the granted set of permissions. It includes the
    /// permissions to impersonate, so the unified auth controller does not manage those.
    pub const RIGHTS: &str = "join.crowsnest.io/rights";
    /// Crowsnest; on migrated objects: the UID of the original. The object is served with this UID, so that owner references stay valid.
    pub const MIGRATED_UID: &str = "migrate.crowsnest.io/uid";
    /// Crowsnest; on migrated objects: the `creationTimestamp` of the original.
    pub const MIGRATED_CREATED: &str = "migrate.crowsnest.io/created";
    /// Crowsnest; on Clusters migrated from Karmada in place: members get no objects that Karmada would not create.
    pub const MIGRATED_FROM: &str = "migrate.crowsnest.io/from";
    pub const MIGRATED_FROM_KARMADA: &str = "karmada";
    /// Crowsnest; on copies of stored objects in the `Stored*` kinds: set until the copy has been read back and compared with the original.
    pub const MIGRATION_UNVERIFIED: &str = "migrate.crowsnest.io/unverified";
    /// Crowsnest; on the earlier definition of a stored kind: all copies of its objects have been read back and compared.
    pub const MIGRATION_VERIFIED: &str = "migrate.crowsnest.io/verified";
    /// Crowsnest; on Leases of the controllers: the identity of the holder, if it is a version that reads the `Stored*`
    /// kinds.
    pub const READS_STORED_KINDS: &str = "storage.crowsnest.io/reader";
    /// Crowsnest; on Clusters: `true` lets a cluster become not ready although most of the fleet seems to fail.
    pub const CONFIRMED_DOWN: &str = "failover.crowsnest.io/confirmed-down";
    /// Crowsnest; on ResourceRegistries: the Secret (`NAMESPACE/NAME`) whose `ca.crt` contains the CAs for the
    /// certificates of the search engine in `spec.backendStore`.
    pub const BACKEND_STORE_CA: &str = "search.crowsnest.io/backend-store-ca-secret";
    /// Crowsnest; on ResourceRegistries: the Secret (`NAMESPACE/NAME`) with `tls.crt` and `tls.key`, the client
    /// certificate for that engine.
    pub const BACKEND_STORE_CERTIFICATE: &str = "search.crowsnest.io/backend-store-certificate-secret";
    /// Crowsnest; on policies and bindings: failback of a workload to the clusters from which it was evicted,
    /// `after=10m,rate=1/m`.
    pub const FAILBACK: &str = "failover.crowsnest.io/return";
    /// Crowsnest; on evicted bindings: the clusters before the eviction.
    pub const ORIGINAL_CLUSTERS: &str = "failover.crowsnest.io/home";
    /// Crowsnest; on templates and policies: `true` starts a copy in a cluster only after those in other clusters
    /// have ended.
    pub const EXCLUSIVE: &str = "failover.crowsnest.io/exclusive";
    pub const EXCLUSIVE_VALUE: &str = "true";
    /// Crowsnest; on bindings: comma-separated names of removed clusters in which the copy may still run.
    pub const UNCONFIRMED: &str = "failover.crowsnest.io/unconfirmed";
    /// Crowsnest; on Events of the journal: the cause, as JSON.
    pub const JOURNAL_CAUSE: &str = "journal.crowsnest.io/cause";
    /// Crowsnest; on Events of the journal: the changes, as JSON.
    pub const JOURNAL_ENTRY: &str = "journal.crowsnest.io/entry";
    /// Crowsnest; on bindings, set by administrators: the unconfirmed clusters in which the copy has ended,
    /// separated by commas.
    pub const CONFIRMED_STOPPED: &str = "failover.crowsnest.io/confirmed-stopped";
    /// Namespace of the policy that has claimed a template.
    pub const PROPAGATION_POLICY_NAMESPACE: &str = "propagationpolicy.karmada.io/namespace";
    pub const PROPAGATION_POLICY_NAME: &str = "propagationpolicy.karmada.io/name";
    pub const CLUSTER_PROPAGATION_POLICY_NAME: &str = "clusterpropagationpolicy.karmada.io/name";
    /// The Work of an object in a member cluster.
    pub const WORK_NAMESPACE: &str = "work.karmada.io/namespace";
    pub const WORK_NAME: &str = "work.karmada.io/name";
    /// `overwrite` or `abort`.
    pub const CONFLICT_RESOLUTION: &str = "work.karmada.io/conflict-resolution";
    pub const CONFLICT_RESOLUTION_OVERWRITE: &str = "overwrite";
    /// The binding of a Work or of an object in a member cluster.
    pub const RESOURCE_BINDING_NAMESPACE: &str = "resourcebinding.karmada.io/namespace";
    pub const RESOURCE_BINDING_NAME: &str = "resourcebinding.karmada.io/name";
    pub const CLUSTER_RESOURCE_BINDING_NAME: &str = "clusterresourcebinding.karmada.io/name";
    /// References of a template to other objects, as JSON.
    pub const DEPENDENCIES: &str = "resourcebinding.karmada.io/dependencies";
    /// Uid of the template of an object in a member cluster.
    pub const RESOURCE_TEMPLATE_UID: &str = "resourcetemplate.karmada.io/uid";
    pub const MANAGED_ANNOTATIONS: &str = "resourcetemplate.karmada.io/managed-annotations";
    pub const MANAGED_LABELS: &str = "resourcetemplate.karmada.io/managed-labels";
    /// The placement of the last scheduling of a binding, as JSON.
    pub const APPLIED_PLACEMENT: &str = "policy.karmada.io/applied-placement";
    /// The overrides applied to a Work, as JSON.
    pub const APPLIED_OVERRIDES: &str = "policy.karmada.io/applied-overrides";
    pub const APPLIED_CLUSTER_OVERRIDES: &str = "policy.karmada.io/applied-cluster-overrides";
    /// The source cluster of an imported EndpointSlice.
    pub const ENDPOINT_SLICE_PROVISION_CLUSTER: &str = "endpointslice.karmada.io/provision-cluster";
    pub const MULTI_CLUSTER_SERVICE_NAMESPACE: &str = "multiclusterservice.karmada.io/namespace";
    pub const MULTI_CLUSTER_SERVICE_NAME: &str = "multiclusterservice.karmada.io/name";
    /// The cluster of an object that was read through search or the fleet-wide proxy.
    pub const CACHED_FROM_CLUSTER: &str = "resource.karmada.io/cached-from-cluster";
    /// The cluster of a metric.
    pub const QUERY_FROM_CLUSTER: &str = "resource.karmada.io/query-from-cluster";
}

/// Keys of cluster taints.
pub mod taint {
    pub const UNSCHEDULABLE: &str = "cluster.karmada.io/unschedulable";
    pub const NOT_READY: &str = "cluster.karmada.io/not-ready";
    pub const UNREACHABLE: &str = "cluster.karmada.io/unreachable";
}

/// Finalizers.
pub mod finalizer {
    pub const CLUSTER_CONTROLLER: &str = "karmada.io/cluster-controller";
    pub const EXECUTION_CONTROLLER: &str = "karmada.io/execution-controller";
    pub const BINDING_CONTROLLER: &str = "karmada.io/binding-controller";
    pub const CLUSTER_RESOURCE_BINDING_CONTROLLER: &str = "karmada.io/cluster-resource-binding-controller";
    pub const ENDPOINT_SLICE_CONTROLLER: &str = "karmada.io/endpointslice-controller";
    pub const MCS_ENDPOINT_SLICE_DISPATCH_CONTROLLER: &str = "karmada.io/mcs-endpointslice-dispatch-controller";
    pub const MULTI_CLUSTER_SERVICE_CONTROLLER: &str = "karmada.io/multiclusterservice-controller";
    pub const PROPAGATION_POLICY_CONTROLLER: &str = "karmada.io/propagation-policy-controller";
    pub const CLUSTER_PROPAGATION_POLICY_CONTROLLER: &str = "karmada.io/cluster-propagation-policy-controller";
    pub const BINDING_DEPENDENCIES_DISTRIBUTOR: &str = "karmada.io/binding-dependencies-distributor";
}

/// Condition types and their reasons.
pub mod condition {
    /// Type of a condition of bindings.
    pub const SCHEDULED: &str = "Scheduled";
    pub const SCHEDULED_SUCCESS: &str = "Success";
    pub const SCHEDULED_SCHEDULER_ERROR: &str = "SchedulerError";
    pub const SCHEDULED_QUOTA_EXCEEDED: &str = "QuotaExceeded";
    pub const FULLY_APPLIED: &str = "FullyApplied";
    pub const FULLY_APPLIED_SUCCESS: &str = "FullyAppliedSuccess";
    pub const FULLY_APPLIED_FAILED: &str = "FullyAppliedFailed";
    /// Type of a condition of Works.
    pub const APPLIED: &str = "Applied";
    pub const APPLIED_SUCCESSFUL: &str = "AppliedSuccessful";
    pub const APPLIED_FAILED: &str = "AppliedFailed";
    pub const DISPATCHING: &str = "Dispatching";
    pub const DISPATCHING_DISPATCHING: &str = "Dispatching";
    pub const DISPATCHING_SUSPENDED: &str = "SuspendDispatching";
    /// Type of a condition of Clusters.
    pub const READY: &str = "Ready";
    pub const COMPLETE_API_ENABLEMENTS: &str = "CompleteAPIEnablements";
    pub const API_ENABLEMENTS_EMPTY: &str = "Empty";
    pub const API_ENABLEMENTS_PARTIAL: &str = "Partial";
    pub const API_ENABLEMENTS_COMPLETE: &str = "Complete";
    /// Crowsnest: the health signals of a cluster, and whether its readiness follows them.
    pub const HEALTH_SIGNALS: &str = "HealthSignals";
    pub const HEALTH_SIGNALS_AGREE: &str = "SignalsAgree";
    /// Some signals fail, but too few or not long enough to change the readiness.
    pub const HEALTH_SIGNALS_DAMPED: &str = "Damped";
    /// The signals fail in most clusters, so readiness does not change.
    pub const HEALTH_SIGNALS_DOUBTED: &str = "Doubted";
    /// Crowsnest: False while the deletion of a cluster waits for the objects that the reason names.
    pub const REMOVING: &str = "Removing";
    pub const REMOVING_EXECUTION_SPACE: &str = "WaitingForExecutionSpace";
    pub const REMOVING_BINDINGS: &str = "WaitingForBindings";
    /// Crowsnest: False while an annotation of Crowsnest has an unknown value; otherwise absent.
    pub const ANNOTATIONS_KNOWN: &str = "AnnotationsKnown";
    /// Crowsnest: True while evictions from the cluster are halted despite a taint; otherwise absent.
    pub const EVICTIONS_HALTED: &str = "EvictionsHalted";
    pub const EVICTIONS_HALTED_DOUBTED: &str = "Doubted";
    pub const EVICTIONS_HALTED_FLEET_NOT_READY: &str = "FleetNotReady";
    /// Crowsnest; on bindings: True while no copy may be started because the end of another copy was not observed;
    /// otherwise absent.
    pub const WAITING_FOR_FENCE: &str = "WaitingForFence";
    /// Types of conditions of MultiClusterServices.
    pub const SERVICE_APPLIED: &str = "ServiceApplied";
    pub const ENDPOINT_SLICE_DISPATCHED: &str = "EndpointSliceDispatched";
}

/// Reasons and producers of evictions.
pub mod eviction {
    pub const REASON_TAINT_UNTOLERATED: &str = "TaintUntolerated";
    pub const REASON_APPLICATION_FAILURE: &str = "ApplicationFailure";
    /// Crowsnest: failback; the temporary copy is evicted after the workload was moved back.
    pub const REASON_FAILBACK: &str = "ReturnHome";
    pub const PRODUCER_TAINT_MANAGER: &str = "TaintManager";
    pub const PRODUCER_FAILBACK: &str = "GoingHome";
    pub const PRODUCER_APPLICATION_FAILOVER: &str = "resource-binding-application-failover-controller";
    pub const PRODUCER_CLUSTER_APPLICATION_FAILOVER: &str = "cluster-resource-binding-application-failover-controller";
}

/// Reasons of events.
pub mod event {
    macro_rules! outcomes {
        ($($succeed:ident $succeed_word:literal, $failed:ident $failed_word:literal;)*) => {
            $( pub const $succeed: &str = $succeed_word; pub const $failed: &str = $failed_word; )*
        };
    }

    outcomes! {
        // Clusters.
        CREATE_EXECUTION_SPACE_SUCCEED "CreateExecutionSpaceSucceed", CREATE_EXECUTION_SPACE_FAILED "CreateExecutionSpaceFailed";
        REMOVE_EXECUTION_SPACE_SUCCEED "RemoveExecutionSpaceSucceed", REMOVE_EXECUTION_SPACE_FAILED "RemoveExecutionSpaceFailed";
        TAINT_CLUSTER_SUCCEED "TaintClusterSucceed", TAINT_CLUSTER_FAILED "TaintClusterFailed";
        SYNC_IMPERSONATION_CONFIG_SUCCEED "SyncImpersonationConfigSucceed", SYNC_IMPERSONATION_CONFIG_FAILED "SyncImpersonationConfigFailed";
        // Works.
        REFLECT_STATUS_SUCCEED "ReflectStatusSucceed", REFLECT_STATUS_FAILED "ReflectStatusFailed";
        INTERPRET_HEALTH_SUCCEED "InterpretHealthSucceed", INTERPRET_HEALTH_FAILED "InterpretHealthFailed";
        SYNC_SUCCEED "SyncSucceed", SYNC_FAILED "SyncFailed";
        // Bindings, templates and quotas.
        SYNC_SCHEDULE_RESULT_SUCCEED "SyncScheduleResultToDependenciesSucceed", SYNC_SCHEDULE_RESULT_FAILED "SyncScheduleResultToDependenciesFailed";
        SYNC_WORK_SUCCEED "SyncWorkSucceed", SYNC_WORK_FAILED "SyncWorkFailed";
        AGGREGATE_STATUS_SUCCEED "AggregateStatusSucceed", AGGREGATE_STATUS_FAILED "AggregateStatusFailed";
        SCHEDULE_BINDING_SUCCEED "ScheduleBindingSucceed", SCHEDULE_BINDING_FAILED "ScheduleBindingFailed";
        DESCHEDULE_BINDING_SUCCEED "DescheduleBindingSucceed", DESCHEDULE_BINDING_FAILED "DescheduleBindingFailed";
        EVICT_WORKLOAD_SUCCEED "EvictWorkloadFromClusterSucceed", EVICT_WORKLOAD_FAILED "EvictWorkloadFromClusterFailed";
        COLLECT_OVERALL_STATUS_SUCCEED "CollectOverallStatusSucceed", COLLECT_OVERALL_STATUS_FAILED "CollectOverallStatusFailed";
        APPLY_POLICY_SUCCEED "ApplyPolicySucceed", APPLY_POLICY_FAILED "ApplyPolicyFailed";
        APPLY_OVERRIDE_POLICY_SUCCEED "ApplyOverridePolicySucceed", APPLY_OVERRIDE_POLICY_FAILED "ApplyOverridePolicyFailed";
        GET_DEPENDENCIES_SUCCEED "GetDependenciesSucceed", GET_DEPENDENCIES_FAILED "GetDependenciesFailed";
        GET_COMPONENTS_SUCCEED "GetComponentsSucceed", GET_COMPONENTS_FAILED "GetComponentsFailed";
        GET_REPLICAS_SUCCEED "GetReplicasSucceed", GET_REPLICAS_FAILED "GetReplicasFailed";
        PREEMPT_POLICY_SUCCEED "PreemptPolicySucceed", PREEMPT_POLICY_FAILED "PreemptPolicyFailed";
        // Services.
        SYNC_DERIVED_SERVICE_SUCCEED "SyncDerivedServiceSucceed", SYNC_DERIVED_SERVICE_FAILED "SyncDerivedServiceFailed";
        SYNC_SERVICE_SUCCEED "SyncServiceSucceed", SYNC_SERVICE_FAILED "SyncServiceFailed";
        DISPATCH_ENDPOINT_SLICE_SUCCEED "DispatchEndpointSliceSucceed", DISPATCH_ENDPOINT_SLICE_FAILED "DispatchEndpointSliceFailed";
    }

    /// Crowsnest; on Clusters: the readiness changed; the message contains the signals.
    pub const CLUSTER_FLIPPED: &str = "ClusterFlipped";
    /// Crowsnest; on Clusters: a cluster was removed while propagated objects remained in it.
    pub const RESOURCES_LEFT_BEHIND: &str = "ResourcesLeftBehind";
    /// Crowsnest; on Clusters: see [`super::condition::EVICTIONS_HALTED`].
    pub const EVICTIONS_HALTED: &str = "EvictionsHalted";
    pub const EVICTIONS_RESUMED: &str = "EvictionsResumed";
    /// Crowsnest; on bindings and templates.
    pub const EVICTION_CANCELLED: &str = "EvictionCancelled";
    pub const EVICTION_WAITS: &str = "EvictionWaitsForReplacement";
    pub const FAILBACK: &str = "ReturnHome";
    pub const FAILBACK_REFUSED: &str = "ReturnRefused";
    pub const WAITING_FOR_FENCE: &str = "WaitingForFence";

    pub const WORK_DISPATCHING: &str = "WorkDispatching";
    pub const CLEANUP_WORK_FAILED: &str = "CleanupWorkFailed";
    pub const DEPENDENCY_POLICY_CONFLICT: &str = "DependencyPolicyConflict";
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    pub const API_INCOMPATIBLE: &str = "APIIncompatible";
    pub const START_RULE_FAILED: &str = "StartRuleFailed";
    pub const SCALE_FAILED: &str = "ScaleFailed";
    pub const UPDATE_STATUS_FAILED: &str = "UpdateStatusFailed";
    pub const UPDATE_CRON_FEDERATED_HPA_FAILED: &str = "UpdateCronFederatedHPAFailed";
}
