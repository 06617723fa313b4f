//! OverridePolicy and ClusterOverridePolicy: changes of an object for some of its clusters.

use std::collections::BTreeMap;

use crate::object::{api_structs, kinds, string_enum};
use crate::policy::{ClusterAffinity, ResourceSelector};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;

kinds! { "policy.karmada.io", "v1alpha1";
    /// OverridePolicy overrides fields of resources in its namespace when they are propagated to member clusters.
    OverridePolicy(Namespaced, "overridepolicies") { spec: OverrideSpec }

    /// ClusterOverridePolicy overrides fields of resources in any namespace, or of cluster-scoped resources, when
    /// they are propagated to member clusters.
    ClusterOverridePolicy(Cluster, "clusteroverridepolicies") { spec: OverrideSpec }
}

api_structs! {
    /// OverrideSpec defines which resources are overridden, for which clusters, and how.
    pub struct OverrideSpec {
        /// ResourceSelectors restricts the resources that this policy applies to. If empty, it applies to all
        /// resources.
        pub resource_selectors(skip): Vec<ResourceSelector>,
        /// OverrideRules are the overrides per cluster, applied in order.
        pub override_rules(skip): Vec<RuleWithCluster>,
        /// TargetCluster restricts the clusters that the overriders apply to. Deprecated: use overrideRules
        /// instead. It must not be set together with overrideRules.
        pub target_cluster?: ClusterAffinity,
        /// Overriders are the overrides to apply. Deprecated: use overrideRules instead. It must not be set
        /// together with overrideRules.
        #[schemars(extend("x-optional" = true))]
        pub overriders: Overriders,
    }

    /// RuleWithCluster defines overrides for a set of clusters.
    pub struct RuleWithCluster {
        /// TargetCluster restricts the clusters that the overriders apply to. If unset, they apply to all clusters.
        pub target_cluster?: ClusterAffinity,
        /// Overriders are the overrides to apply.
        pub overriders: Overriders,
    }

    /// Overriders are the overrides of an object, grouped by type. The types are applied in a fixed order, the
    /// items of one type in the order of the list.
    pub struct Overriders {
        /// Plaintext overrides fields by JSON pointer.
        pub plaintext(skip): Vec<PlaintextOverrider>,
        /// ImageOverrider overrides image references.
        pub image_overrider(skip): Vec<ImageOverrider>,
        /// CommandOverrider overrides the commands of containers.
        pub command_overrider(skip): Vec<CommandArgsOverrider>,
        /// ArgsOverrider overrides the arguments of containers.
        pub args_overrider(skip): Vec<CommandArgsOverrider>,
        /// LabelsOverrider overrides labels.
        pub labels_overrider(skip): Vec<LabelAnnotationOverrider>,
        /// AnnotationsOverrider overrides annotations.
        pub annotations_overrider(skip): Vec<LabelAnnotationOverrider>,
        /// FieldOverrider overrides parts of a string field that contains JSON or YAML.
        pub field_overrider(skip): Vec<FieldOverrider>,
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
        pub predicate?: ImagePredicate,
        /// Component is the component of the image reference to override.
        pub component: ImageComponent,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Value is the new value, or the value to append. It must be empty if the operator is remove.
        pub value(skip): String,
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
        pub value(skip): Vec<String>,
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
        pub json(skip): Vec<FieldPatchOperation>,
        /// YAML contains the changes of a YAML document.
        pub yaml(skip): Vec<FieldPatchOperation>,
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
