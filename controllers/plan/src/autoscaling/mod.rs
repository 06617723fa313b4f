//! Autoscaling across clusters: replicas from the metrics of a FederatedHPA, and the rules of a CronFederatedHPA.
//! Metrics and behavior follow Kubernetes' HorizontalPodAutoscaler, applied to the pods of all clusters. The result is
//! then divided by the number of replicas that the clusters run per replica of the template.

pub mod behavior;
pub mod cron;
pub mod defaults;
pub mod federated;
pub mod metrics;
pub mod pods;
pub mod replicas;
pub mod rules;
