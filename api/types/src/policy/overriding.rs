//! OverridePolicy and ClusterOverridePolicy: changes of an object for some of its clusters.

use std::collections::BTreeMap;

use crate::object::{api_structs, kind, string_enum};
use crate::policy::{ClusterAffinity, ResourceSelector};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;

kind! {
    /// OverridePolicy overrides fields of resources in its namespace when they are propagated to member clusters.
    OverridePolicy, Namespaced, "policy.karmada.io", "v1alpha1", "overridepolicies" {
        spec: OverrideSpec,
    }
}

kind! {
    /// ClusterOverridePolicy overrides fields of resources in any namespace, or of cluster-scoped resources, when
    /// they are propagated to member clusters.
    ClusterOverridePolicy, Cluster, "policy.karmada.io", "v1alpha1", "clusteroverridepolicies" {
        spec: OverrideSpec,
    }
}

api_structs! {
    /// OverrideSpec defines which resources are overridden, for which clusters, and how.
    pub struct OverrideSpec {
        /// ResourceSelectors restricts the resources that this policy applies to. If empty, it applies to all
        /// resources.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resource_selectors: Vec<ResourceSelector>,
        /// OverrideRules are the overrides per cluster, applied in order.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub override_rules: Vec<RuleWithCluster>,
        /// TargetCluster restricts the clusters that the overriders apply to. Deprecated: use overrideRules
        /// instead. It must not be set together with overrideRules.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_cluster: Option<ClusterAffinity>,
        /// Overriders are the overrides to apply. Deprecated: use overrideRules instead. It must not be set
        /// together with overrideRules.
        #[schemars(extend("x-optional" = true))]
        pub overriders: Overriders,
    }

    /// RuleWithCluster defines overrides for a set of clusters.
    pub struct RuleWithCluster {
        /// TargetCluster restricts the clusters that the overriders apply to. If unset, they apply to all clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_cluster: Option<ClusterAffinity>,
        /// Overriders are the overrides to apply.
        pub overriders: Overriders,
    }

    /// Overriders are the overrides of an object, grouped by type. The types are applied in a fixed order, the
    /// items of one type in the order of the list.
    pub struct Overriders {
        /// Plaintext overrides fields by JSON pointer.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub plaintext: Vec<PlaintextOverrider>,
        /// ImageOverrider overrides image references.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub image_overrider: Vec<ImageOverrider>,
        /// CommandOverrider overrides the commands of containers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub command_overrider: Vec<CommandArgsOverrider>,
        /// ArgsOverrider overrides the arguments of containers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub args_overrider: Vec<CommandArgsOverrider>,
        /// LabelsOverrider overrides labels.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub labels_overrider: Vec<LabelAnnotationOverrider>,
        /// AnnotationsOverrider overrides annotations.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub annotations_overrider: Vec<LabelAnnotationOverrider>,
        /// FieldOverrider overrides parts of a string field that contains JSON or YAML.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub field_overrider: Vec<FieldOverrider>,
    }

    /// LabelAnnotationOverrider overrides labels or annotations.
    pub struct LabelAnnotationOverrider {
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Value contains the keys and values to set. The operator remove only uses the keys.
        pub value: BTreeMap<String, String>,
    }

    /// ImageOverrider overrides one component of an image reference.
    pub struct ImageOverrider {
        /// Predicate selects the image by path. If unset, all images of the kinds with known image fields are
        /// overridden.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub predicate: Option<ImagePredicate>,
        /// Component is the component of the image reference to override.
        pub component: ImageComponent,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Value is the new value, or the value to append. It must be empty if the operator is remove.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub value: String,
    }

    /// ImagePredicate selects an image field.
    pub struct ImagePredicate {
        /// Path is the JSON pointer to the field.
        pub path: String,
    }

    /// CommandArgsOverrider overrides the command or the arguments of a container.
    pub struct CommandArgsOverrider {
        pub container_name: String,
        #[schemars(extend("enum" = ["add", "remove"]))]
        pub operator: OverriderOperator,
        /// Value contains the items to append or to remove.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub value: Vec<String>,
    }

    /// PlaintextOverrider overrides a field.
    pub struct PlaintextOverrider {
        /// Path is the JSON pointer to the field.
        pub path: String,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Value is the new value of the field. It must be null if the operator is remove.
        #[schemars(extend("x-optional" = true))]
        pub value: Option<JSON>,
    }

    /// FieldOverrider overrides parts of the document in a string field.
    pub struct FieldOverrider {
        /// FieldPath is the JSON pointer to the string field.
        pub field_path: String,
        /// JSON contains the changes of a JSON document.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub json: Vec<FieldPatchOperation>,
        /// YAML contains the changes of a YAML document.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub yaml: Vec<FieldPatchOperation>,
    }

    /// FieldPatchOperation is one change of the document in a string field.
    pub struct FieldPatchOperation {
        /// SubPath is the JSON pointer within the document.
        pub sub_path: String,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Value is the new value. It must be null if the operator is remove.
        #[schemars(extend("x-optional" = true))]
        pub value: Option<JSON>,
    }
}

string_enum! { open
    /// OverriderOperator is the operation of an override.
    OverriderOperator { Add = "add", Remove = "remove", Replace = "replace" }
}

string_enum! { closed
    /// ImageComponent is a component of an image reference.
    ImageComponent {
        Registry = "Registry",
        Repository = "Repository",
        /// The tag or digest.
        Tag = "Tag",
    }
}
