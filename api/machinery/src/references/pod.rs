//! References of pods and pod templates, read from borrowed JSON: pods are the most frequent objects.

use super::References;
use super::kubernetes::{
    CLUSTER_TRUST_BUNDLE, CONFIG_MAP, CSI_DRIVER, ENDPOINTS, NODE, PERSISTENT_VOLUME_CLAIM, PRIORITY_CLASS,
    RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, RUNTIME_CLASS, SECRET, SERVICE_ACCOUNT,
};
use super::rule::Kind;
use crate::printers::borrowed::{Str, null_as_default};
use crate::views;
use serde::Deserialize;

views! {
    Pod { metadata: Metadata<'a>, spec: PodSpec<'a>, status: PodStatus<'a> }
    Metadata { namespace: Str<'a> }
    PodStatus { resource_claim_statuses: Vec<ClaimStatus<'a>> }
    ClaimStatus { resource_claim_name: Str<'a> }
    PodSpec {
        containers: Vec<Container<'a>>,
        init_containers: Vec<Container<'a>>,
        ephemeral_containers: Vec<Container<'a>>,
        volumes: Vec<Volume<'a>>,
        image_pull_secrets: Vec<Named<'a>>,
        resource_claims: Vec<PodClaim<'a>>,
        node_name: Str<'a>,
        priority_class_name: Str<'a>,
        runtime_class_name: Str<'a>,
        service_account_name: Str<'a>,
    }
    Named { name: Str<'a> }
    PodClaim { resource_claim_name: Str<'a>, resource_claim_template_name: Str<'a> }
    Container { env: Vec<EnvVar<'a>>, env_from: Vec<EnvFrom<'a>> }
    EnvVar { value_from: ValueFrom<'a> }
    ValueFrom { config_map_key_ref: Named<'a>, secret_key_ref: Named<'a> }
    EnvFrom { config_map_ref: Named<'a>, secret_ref: Named<'a> }
    Volume {
        config_map: Named<'a>,
        secret: SecretVolume<'a>,
        persistent_volume_claim: ClaimVolume<'a>,
        projected: Projected<'a>,
        csi: CsiVolume<'a>,
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
    CsiVolume { driver: Str<'a>, node_publish_secret_ref: Named<'a> }
    EndpointsVolume { endpoints: Str<'a> }
    DriverVolume { secret_ref: Named<'a> }
    Projected { sources: Vec<ProjectedSource<'a>> }
    ProjectedSource { config_map: Named<'a>, secret: Named<'a>, cluster_trust_bundle: Named<'a> }
}

impl Pod<'_> {
    pub(super) fn references(&self) -> References<'_> {
        let mut found = References::of(&self.metadata.namespace);
        self.spec.references(&mut found);
        for claim in &self.status.resource_claim_statuses {
            found.add(RESOURCE_CLAIM, "", &claim.resource_claim_name);
        }
        found
    }
}

impl PodSpec<'_> {
    pub(super) fn references(&self, found: &mut References<'_>) {
        let mut add = |kind: Kind, name: &str| found.add(kind, "", name);
        self.volumes.iter().for_each(|volume| volume.references(&mut add));
        let containers = self.containers.iter().chain(&self.init_containers).chain(&self.ephemeral_containers);
        containers.for_each(|container| container.references(&mut add));
        self.image_pull_secrets.iter().for_each(|secret| add(SECRET, &secret.name));
        for claim in &self.resource_claims {
            add(RESOURCE_CLAIM, &claim.resource_claim_name);
            add(RESOURCE_CLAIM_TEMPLATE, &claim.resource_claim_template_name);
        }
        add(NODE, &self.node_name);
        add(PRIORITY_CLASS, &self.priority_class_name);
        add(RUNTIME_CLASS, &self.runtime_class_name);
        add(SERVICE_ACCOUNT, &self.service_account_name);
    }
}

impl Container<'_> {
    fn references(&self, add: &mut impl FnMut(Kind, &str)) {
        for EnvVar { value_from, .. } in &self.env {
            add(CONFIG_MAP, &value_from.config_map_key_ref.name);
            add(SECRET, &value_from.secret_key_ref.name);
        }
        for from in &self.env_from {
            add(CONFIG_MAP, &from.config_map_ref.name);
            add(SECRET, &from.secret_ref.name);
        }
    }
}

impl Volume<'_> {
    fn references(&self, add: &mut impl FnMut(Kind, &str)) {
        add(CONFIG_MAP, &self.config_map.name);
        add(PERSISTENT_VOLUME_CLAIM, &self.persistent_volume_claim.claim_name);
        add(CSI_DRIVER, &self.csi.driver);
        add(ENDPOINTS, &self.glusterfs.endpoints);
        for source in &self.projected.sources {
            add(CONFIG_MAP, &source.config_map.name);
            add(SECRET, &source.secret.name);
            add(CLUSTER_TRUST_BUNDLE, &source.cluster_trust_bundle.name);
        }
        let drivers =
            [&self.cephfs, &self.cinder, &self.flex_volume, &self.iscsi, &self.rbd, &self.scale_io, &self.storageos];
        drivers.into_iter().for_each(|volume| add(SECRET, &volume.secret_ref.name));
        add(SECRET, &self.secret.secret_name);
        add(SECRET, &self.azure_file.secret_name);
        add(SECRET, &self.csi.node_publish_secret_ref.name);
    }
}
