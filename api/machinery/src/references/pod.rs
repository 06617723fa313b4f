//! References of pods and pod templates, read from borrowed JSON: pods are the most frequent objects.

use super::References;
use super::kubernetes::{
    CLUSTER_TRUST_BUNDLE, CONFIG_MAP, CSI_DRIVER, ENDPOINTS, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM,
    POD_GROUP, PRIORITY_CLASS, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, RUNTIME_CLASS, SECRET, SERVICE_ACCOUNT,
    STORAGE_CLASS, VOLUME_ATTRIBUTES_CLASS,
};
use super::rule::GroupKind;
use crate::printers::borrowed::{Str, null_as_default};
use crate::views;
use serde::Deserialize;
use std::borrow::Cow;

views! {
    Pod { metadata: Metadata<'a>, spec: PodSpec<'a>, status: PodStatus<'a> }
    Metadata { namespace: Str<'a> }
    PodStatus {
        resource_claim_statuses: Vec<ClaimStatus<'a>>,
        extended_resource_claim_status: ClaimStatus<'a>,
        node_allocatable_resource_claim_statuses: Vec<ClaimStatus<'a>>,
    }
    ClaimStatus { resource_claim_name: Str<'a> }
    PodSpec {
        containers: Vec<Container<'a>>,
        init_containers: Vec<Container<'a>>,
        ephemeral_containers: Vec<Container<'a>>,
        volumes: Vec<Volume<'a>>,
        image_pull_secrets: Vec<LocalObjectReference<'a>>,
        resource_claims: Vec<PodClaim<'a>>,
        node_name: Str<'a>,
        priority_class_name: Str<'a>,
        runtime_class_name: Str<'a>,
        service_account_name: Str<'a>,
        scheduling_group: SchedulingGroup<'a>,
    }
    SchedulingGroup { pod_group_name: Str<'a> }
    LocalObjectReference { name: Str<'a> }
    PodClaim { resource_claim_name: Str<'a>, resource_claim_template_name: Str<'a> }
    Container { env: Vec<EnvVar<'a>>, env_from: Vec<EnvFrom<'a>> }
    EnvVar { value_from: ValueFrom<'a> }
    ValueFrom { config_map_key_ref: LocalObjectReference<'a>, secret_key_ref: LocalObjectReference<'a> }
    EnvFrom { config_map_ref: LocalObjectReference<'a>, secret_ref: LocalObjectReference<'a> }
    Volume {
        config_map: LocalObjectReference<'a>,
        secret: SecretVolume<'a>,
        persistent_volume_claim: ClaimVolume<'a>,
        projected: ProjectedVolume<'a>,
        csi: CsiVolume<'a>,
        ephemeral: EphemeralVolume<'a>,
        azure_file: SecretVolume<'a>,
        glusterfs: EndpointsVolume<'a>,
        cephfs: DriverVolume<'a>,
        cinder: DriverVolume<'a>,
        flex_volume: DriverVolume<'a>,
        iscsi: DriverVolume<'a>,
        rbd: DriverVolume<'a>,
        #[serde(rename = "scaleIO")] scale_io: DriverVolume<'a>,
        storageos: DriverVolume<'a>,
    }
    SecretVolume { secret_name: Str<'a> }
    ClaimVolume { claim_name: Str<'a> }
    EphemeralVolume { volume_claim_template: ClaimTemplate<'a> }
    ClaimTemplate { spec: ClaimSpec<'a> }
    ClaimSpec {
        storage_class_name: Str<'a>,
        volume_attributes_class_name: Str<'a>,
        volume_name: Str<'a>,
        data_source: DataSource<'a>,
        data_source_ref: DataSource<'a>,
    }
    DataSource { api_group: Str<'a>, kind: Str<'a>, name: Str<'a>, namespace: Str<'a> }
    CsiVolume { driver: Str<'a>, node_publish_secret_ref: LocalObjectReference<'a> }
    EndpointsVolume { endpoints: Str<'a> }
    DriverVolume { secret_ref: LocalObjectReference<'a> }
    ProjectedVolume { sources: Vec<ProjectedSource<'a>> }
    ProjectedSource {
        config_map: LocalObjectReference<'a>,
        secret: LocalObjectReference<'a>,
        cluster_trust_bundle: LocalObjectReference<'a>,
    }
}

/// Field with the node of a pod.
pub(super) const NODE_NAME: &str = "nodeName";

impl Pod<'_> {
    pub(super) fn references(&self) -> References<'_> {
        let mut references = References::in_namespace(&self.metadata.namespace);
        references.prefix = Cow::Borrowed("spec");
        self.spec.references(&mut references);
        references.prefix = Cow::Borrowed("status");
        for claim in &self.status.resource_claim_statuses {
            references.add(RESOURCE_CLAIM, "", &claim.resource_claim_name, "resourceClaimStatuses[].resourceClaimName");
        }
        let claim_name = &self.status.extended_resource_claim_status.resource_claim_name;
        references.add(RESOURCE_CLAIM, "", claim_name, "extendedResourceClaimStatus.resourceClaimName");
        for claim in &self.status.node_allocatable_resource_claim_statuses {
            let field = "nodeAllocatableResourceClaimStatuses[].resourceClaimName";
            references.add(RESOURCE_CLAIM, "", &claim.resource_claim_name, field);
        }
        references
    }
}

impl PodSpec<'_> {
    pub(super) fn references(&self, references: &mut References<'_>) {
        self.volumes.iter().for_each(|volume| volume.ephemeral.add_data_sources(references));
        let mut add = |kind: GroupKind, name: &str, field: &'static str| references.add(kind, "", name, field);
        self.volumes.iter().for_each(|volume| volume.references(&mut add));
        self.containers.iter().for_each(|container| container.references(&CONTAINER, &mut add));
        self.init_containers.iter().for_each(|container| container.references(&INIT_CONTAINER, &mut add));
        self.ephemeral_containers.iter().for_each(|container| container.references(&EPHEMERAL_CONTAINER, &mut add));
        self.image_pull_secrets.iter().for_each(|secret| add(SECRET, &secret.name, "imagePullSecrets[].name"));
        for claim in &self.resource_claims {
            add(RESOURCE_CLAIM, &claim.resource_claim_name, "resourceClaims[].resourceClaimName");
            let template = &claim.resource_claim_template_name;
            add(RESOURCE_CLAIM_TEMPLATE, template, "resourceClaims[].resourceClaimTemplateName");
        }
        add(NODE, &self.node_name, NODE_NAME);
        add(PRIORITY_CLASS, &self.priority_class_name, "priorityClassName");
        add(RUNTIME_CLASS, &self.runtime_class_name, "runtimeClassName");
        add(SERVICE_ACCOUNT, &self.service_account_name, "serviceAccountName");
        add(POD_GROUP, &self.scheduling_group.pod_group_name, "schedulingGroup.podGroupName");
    }
}

/// Paths of the references of a container: ConfigMap and Secret of `env`, then of `envFrom`.
type ContainerFields = [&'static str; 4];

const CONTAINER: ContainerFields = [
    "containers[].env[].valueFrom.configMapKeyRef",
    "containers[].env[].valueFrom.secretKeyRef",
    "containers[].envFrom[].configMapRef",
    "containers[].envFrom[].secretRef",
];
const INIT_CONTAINER: ContainerFields = [
    "initContainers[].env[].valueFrom.configMapKeyRef",
    "initContainers[].env[].valueFrom.secretKeyRef",
    "initContainers[].envFrom[].configMapRef",
    "initContainers[].envFrom[].secretRef",
];
const EPHEMERAL_CONTAINER: ContainerFields = [
    "ephemeralContainers[].env[].valueFrom.configMapKeyRef",
    "ephemeralContainers[].env[].valueFrom.secretKeyRef",
    "ephemeralContainers[].envFrom[].configMapRef",
    "ephemeralContainers[].envFrom[].secretRef",
];

impl Container<'_> {
    fn references(&self, fields: &ContainerFields, add: &mut impl FnMut(GroupKind, &str, &'static str)) {
        for EnvVar { value_from, .. } in &self.env {
            add(CONFIG_MAP, &value_from.config_map_key_ref.name, fields[0]);
            add(SECRET, &value_from.secret_key_ref.name, fields[1]);
        }
        for from in &self.env_from {
            add(CONFIG_MAP, &from.config_map_ref.name, fields[2]);
            add(SECRET, &from.secret_ref.name, fields[3]);
        }
    }
}

impl EphemeralVolume<'_> {
    /// Adds the objects from which the volume is filled. They contain their kinds.
    fn add_data_sources(&self, references: &mut References<'_>) {
        let ClaimSpec { data_source, data_source_ref, .. } = &self.volume_claim_template.spec;
        let sources = [
            (data_source, "volumes[].ephemeral.volumeClaimTemplate.spec.dataSource"),
            (data_source_ref, "volumes[].ephemeral.volumeClaimTemplate.spec.dataSourceRef"),
        ];
        for (source, field) in sources {
            references.add((&source.api_group, &source.kind), &source.namespace, &source.name, field);
        }
    }
}

impl Volume<'_> {
    fn references(&self, add: &mut impl FnMut(GroupKind, &str, &'static str)) {
        add(CONFIG_MAP, &self.config_map.name, "volumes[].configMap");
        add(PERSISTENT_VOLUME_CLAIM, &self.persistent_volume_claim.claim_name, "volumes[].persistentVolumeClaim");
        add(CSI_DRIVER, &self.csi.driver, "volumes[].csi.driver");
        add(ENDPOINTS, &self.glusterfs.endpoints, "volumes[].glusterfs.endpoints");
        let claim = &self.ephemeral.volume_claim_template.spec;
        let class = "volumes[].ephemeral.volumeClaimTemplate.spec.storageClassName";
        add(STORAGE_CLASS, &claim.storage_class_name, class);
        let attributes = "volumes[].ephemeral.volumeClaimTemplate.spec.volumeAttributesClassName";
        add(VOLUME_ATTRIBUTES_CLASS, &claim.volume_attributes_class_name, attributes);
        let volume = "volumes[].ephemeral.volumeClaimTemplate.spec.volumeName";
        add(PERSISTENT_VOLUME, &claim.volume_name, volume);
        for source in &self.projected.sources {
            add(CONFIG_MAP, &source.config_map.name, "volumes[].projected.sources[].configMap");
            add(SECRET, &source.secret.name, "volumes[].projected.sources[].secret");
            let bundle = &source.cluster_trust_bundle.name;
            add(CLUSTER_TRUST_BUNDLE, bundle, "volumes[].projected.sources[].clusterTrustBundle");
        }
        let drivers = [
            (&self.cephfs, "volumes[].cephfs.secretRef"),
            (&self.cinder, "volumes[].cinder.secretRef"),
            (&self.flex_volume, "volumes[].flexVolume.secretRef"),
            (&self.iscsi, "volumes[].iscsi.secretRef"),
            (&self.rbd, "volumes[].rbd.secretRef"),
            (&self.scale_io, "volumes[].scaleIO.secretRef"),
            (&self.storageos, "volumes[].storageos.secretRef"),
        ];
        drivers.into_iter().for_each(|(volume, field)| add(SECRET, &volume.secret_ref.name, field));
        add(SECRET, &self.secret.secret_name, "volumes[].secret");
        add(SECRET, &self.azure_file.secret_name, "volumes[].azureFile");
        add(SECRET, &self.csi.node_publish_secret_ref.name, "volumes[].csi.nodePublishSecretRef");
    }
}
