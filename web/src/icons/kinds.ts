// Icons of kinds, in sprite.svg. A kind without an icon of its own has a generic one.
import { groupOf } from '../api/client'

/** Groups of Kubernetes and Karmada. A CustomResourceDefinition of others has a domain in its group. */
const OWN_GROUP = /^[^.]*$|\.(k8s|karmada)\.io$/
const ICONS: Record<string, string> = {
  Pod: 'pod',
  Deployment: 'deployment',
  ReplicaSet: 'replicaset',
  ReplicationController: 'replicaset',
  StatefulSet: 'statefulset',
  DaemonSet: 'daemonset',
  Job: 'job',
  CronJob: 'cronjob',
  Service: 'service',
  Endpoints: 'endpoints',
  EndpointSlice: 'endpoints',
  Ingress: 'ingress',
  NetworkPolicy: 'shield',
  PodDisruptionBudget: 'shield',
  ConfigMap: 'configmap',
  Secret: 'secret',
  PersistentVolumeClaim: 'volume',
  PersistentVolume: 'volume',
  StorageClass: 'volume',
  Namespace: 'namespace',
  Node: 'node',
  Event: 'event',
  ServiceAccount: 'account',
  Role: 'role',
  ClusterRole: 'role',
  RoleBinding: 'role',
  ClusterRoleBinding: 'role',
  CustomResourceDefinition: 'definition',
  HorizontalPodAutoscaler: 'scale',
  CronFederatedHPA: 'scale',
  FederatedHPA: 'scale',
  ResourceQuota: 'quota',
  LimitRange: 'quota',
  FederatedResourceQuota: 'quota',
  Cluster: 'cluster',
  PropagationPolicy: 'policy',
  ClusterPropagationPolicy: 'policy',
  ClusterTaintPolicy: 'policy',
  OverridePolicy: 'override',
  ClusterOverridePolicy: 'override',
  ResourceBinding: 'binding',
  ClusterResourceBinding: 'binding',
  Work: 'work',
  WorkloadRebalancer: 'rebalance',
}

export const GENERIC = 'object'
export const iconOfKind = (kind: string, apiVersion: string): string => (OWN_GROUP.test(groupOf(apiVersion)) && ICONS[kind]) || GENERIC
/** All icons of kinds. */
export const KIND_ICONS: readonly string[] = [...new Set([...Object.values(ICONS), GENERIC])]
/** Icons of the navigation and of controls. */
export const OTHER_ICONS = ['home', 'search', 'fleet', 'propagation', 'saved', 'wide', 'narrow'] as const
export type OtherIcon = (typeof OTHER_ICONS)[number]
