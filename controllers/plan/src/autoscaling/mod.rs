//! Autoscaling across clusters: replicas from the metrics of a FederatedHPA, and the rules of a CronFederatedHPA.
//! Metrics and behavior follow Kubernetes' HorizontalPodAutoscaler; results over the pods of all clusters are scaled
//! back to the template's replicas.

pub mod behavior;
pub mod cron;
pub mod defaults;
pub mod federated;
pub mod metrics;
pub mod pods;
pub mod replicas;
pub mod rules;
