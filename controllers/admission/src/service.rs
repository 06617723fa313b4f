//! Admission of MultiClusterServices.

use std::collections::BTreeSet;

use crowsnest_api::constants::label;
use crowsnest_api::networking::{ClusterSelector, ExposurePort, MultiClusterService, MultiClusterServiceSpec};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;

use super::decode::{decode, encode_changed_with_lists};
use super::{AdmissionContext, Operation, Outcome, Refusal, Request, ingress, metadata};

pub(super) fn mutate(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let mut service: MultiClusterService = decode(&request.object)?;
    if metadata::label(&service.metadata, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID).is_empty() {
        metadata::set_label(&mut service.metadata, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID, context.permanent_id);
    }
    encode_changed_with_lists(&service, &request.object, &["types"])
}

pub(super) fn validate(request: &Request) -> Result<Outcome, Refusal> {
    let service: MultiClusterService = decode(&request.object)?;
    let mut errors = Vec::new();
    if request.operation == Operation::Update {
        let old: MultiClusterService = decode(&request.old_object)?;
        if old.spec.types != service.spec.types {
            let detail = "MultiClusterService types are immutable";
            errors.push(FieldError::invalid("spec.types", &old.spec.types, detail));
        }
    }
    errors.extend(metadata::validate(&service.metadata, true, format::validate_dns1035_label));
    errors.extend(validate_spec(&service.spec));
    if request.operation == Operation::Update {
        let ingresses = service.status.load_balancer.iter().flat_map(|status| status.ingress.iter().flatten());
        errors.extend(ingress::validate_addresses(
            ingresses.map(|ingress| (ingress.ip.as_deref(), ingress.hostname.as_deref())),
        ));
    }
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_spec(spec: &MultiClusterServiceSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (index, port) in spec.ports.iter().enumerate() {
        errors.extend(validate_port(port, &mut names, &format!("spec.ports[{index}]")));
    }
    for (index, exposure) in spec.types.iter().enumerate().filter(|(_, exposure)| !exposure.is_known()) {
        errors.push(FieldError::invalid(format!("spec.types[{index}]"), exposure, "ExposureType Error"));
    }
    if spec.types.iter().collect::<BTreeSet<_>>().len() > 1 {
        let detail = "MultiClusterService types should not contain more than one type";
        errors.push(FieldError::invalid("spec.types", &spec.types, detail));
    }
    errors.extend(validate_clusters(&spec.provider_clusters, "spec.range.providerClusters"));
    errors.extend(validate_clusters(&spec.consumer_clusters, "spec.range.consumerClusters"));
    errors
}

fn validate_port<'p>(port: &'p ExposurePort, names: &mut BTreeSet<&'p str>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !port.name.is_empty() {
        let field = format!("{path}.name");
        let problems = format::validate_dns1123_label(&port.name).into_iter();
        errors.extend(problems.map(|problem| FieldError::invalid(&field, &port.name, problem)));
        if !names.insert(&port.name) {
            errors.push(FieldError::duplicate(&field, &port.name));
        }
    }
    errors.extend(ingress::validate_port_number(port.port, format!("{path}.port")));
    errors
}

fn validate_clusters(clusters: &[ClusterSelector], path: &str) -> Vec<FieldError> {
    let find_error = |(index, cluster): (usize, &ClusterSelector)| {
        let problems = format::validate_cluster_name(&cluster.name);
        let field = format!("{path}[{index}]");
        (!problems.is_empty()).then(|| FieldError::invalid(field, &cluster.name, problems.join(",")))
    };
    clusters.iter().enumerate().filter_map(find_error).collect()
}
