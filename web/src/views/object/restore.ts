// The object that results from restoring an earlier version. Pure.
import type { KubeObject } from '../../api/types'

/** Fields of metadata that identify or describe the stored object, not its content. */
const OF_SERVER = ['uid', 'resourceVersion', 'generation', 'creationTimestamp', 'deletionTimestamp', 'deletionGracePeriodSeconds', 'selfLink', 'managedFields', 'ownerReferences', 'finalizers'] as const

/**
 * The current object with the labels and the content of the version. Annotations and other metadata stay, because the cache does not keep
 * all of them. Without a current object, a new one with the metadata that a user can set.
 */
export function restored(current: KubeObject | undefined, version: KubeObject): KubeObject {
  const { status: _status, metadata, ...content } = version
  if (!current) {
    const kept = Object.fromEntries(Object.entries(metadata).filter(([name]) => !(OF_SERVER as readonly string[]).includes(name)))
    return { ...content, metadata: kept } as unknown as KubeObject
  }
  const { labels: _labels, managedFields: _managed, ...own } = current.metadata
  return {
    ...content,
    apiVersion: current.apiVersion,
    kind: current.kind,
    metadata: { ...own, ...(metadata.labels && { labels: metadata.labels }) },
    ...(current.status !== undefined && { status: current.status }),
  } as unknown as KubeObject
}
