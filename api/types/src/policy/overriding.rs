//! OverridePolicy and ClusterOverridePolicy: how an object differs from its template in some clusters.

use std::collections::BTreeMap;

use crate::object::{kind, shape, word};
use crate::policy::{ClusterAffinity, ResourceSelector};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;

kind! {
    /// Changes objects of its own namespace on their way to a member.
    OverridePolicy, Namespaced, "policy.karmada.io", "v1alpha1", "overridepolicies" {
        spec: OverrideSpec,
    }
}

kind! {
    /// Changes objects of any namespace, or cluster-scoped ones, on their way to a member.
    ClusterOverridePolicy, Cluster, "policy.karmada.io", "v1alpha1", "clusteroverridepolicies" {
        spec: OverrideSpec,
    }
}

shape! {
    /// Which objects change, where and how.
    pub struct OverrideSpec {
        /// The objects; none means all.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resource_selectors: Vec<ResourceSelector>,
        /// The changes, made in order.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub override_rules: Vec<RuleWithCluster>,
        /// Deprecated in favour of `override_rules`, and not together with them.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_cluster: Option<ClusterAffinity>,
        /// Deprecated in favour of `override_rules`, and not together with them.
        #[schemars(extend("x-optional" = true))]
        pub overriders: Overriders,
    }

    /// Changes for some clusters.
    pub struct RuleWithCluster {
        /// The clusters; absent means all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_cluster: Option<ClusterAffinity>,
        /// The changes.
        pub overriders: Overriders,
    }

    /// Changes of an object, by sort. The sorts are applied in a fixed order, the items of one sort as listed.
    pub struct Overriders {
        /// Changes at JSON pointers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub plaintext: Vec<PlaintextOverrider>,
        /// Changes of image references.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub image_overrider: Vec<ImageOverrider>,
        /// Changes of container commands.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub command_overrider: Vec<CommandArgsOverrider>,
        /// Changes of container arguments.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub args_overrider: Vec<CommandArgsOverrider>,
        /// Changes of labels.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub labels_overrider: Vec<LabelAnnotationOverrider>,
        /// Changes of annotations.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub annotations_overrider: Vec<LabelAnnotationOverrider>,
        /// Changes inside a string field that holds JSON or YAML.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub field_overrider: Vec<FieldOverrider>,
    }

    /// A change of labels or annotations.
    pub struct LabelAnnotationOverrider {
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// Keys and values; removal looks at the keys only.
        pub value: BTreeMap<String, String>,
    }

    /// A change of one part of an image reference.
    pub struct ImageOverrider {
        /// Where the image is. Absent means wherever the kind is known to have images.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub predicate: Option<ImagePredicate>,
        /// The part that changes.
        pub component: ImageComponent,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// The new part, or what is appended.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub value: String,
    }

    /// Where an image is.
    pub struct ImagePredicate {
        /// JSON pointer to the field.
        pub path: String,
    }

    /// A change of a container's command or arguments.
    pub struct CommandArgsOverrider {
        pub container_name: String,
        #[schemars(extend("enum" = ["add", "remove"]))]
        pub operator: OverriderOperator,
        /// The items appended, or taken out.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub value: Vec<String>,
    }

    /// A change at a JSON pointer.
    pub struct PlaintextOverrider {
        /// JSON pointer to the field.
        pub path: String,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// The new value. Not with `remove`. Always written, as null when there is none.
        #[schemars(extend("x-optional" = true))]
        pub value: Option<JSON>,
    }

    /// Changes inside one string field.
    pub struct FieldOverrider {
        /// JSON pointer to the string field.
        pub field_path: String,
        /// Changes when the string holds JSON.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub json: Vec<FieldPatchOperation>,
        /// Changes when the string holds YAML.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub yaml: Vec<FieldPatchOperation>,
    }

    /// One change of the document inside a string field.
    pub struct FieldPatchOperation {
        /// JSON pointer within the document.
        pub sub_path: String,
        #[schemars(extend("enum" = ["add", "remove", "replace"]))]
        pub operator: OverriderOperator,
        /// The new value. Not with `remove`. Always written, as null when there is none.
        #[schemars(extend("x-optional" = true))]
        pub value: Option<JSON>,
    }
}

word! { open
    /// What is done to a value.
    OverriderOperator { Add = "add", Remove = "remove", Replace = "replace" }
}

word! { closed
    /// A part of an image reference.
    ImageComponent {
        Registry = "Registry",
        Repository = "Repository",
        /// Tag or digest.
        Tag = "Tag",
    }
}
