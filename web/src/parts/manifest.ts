// Parses manifests, and locates fields in their text.
import { isMap, isScalar, isSeq } from 'yaml'
import type { KubeObject } from '../api/types'
import { parseAll, type ParsedDocument, type Problem } from './yaml'

export interface Manifest extends Pick<ParsedDocument, 'document'> {
  object: KubeObject
  /** Range of its text. */
  from: number
  to: number
}

export interface Read {
  manifests: Manifest[]
  /** An error in YAML syntax. */
  problems: Problem[]
  /** Position of a document that is not an object. */
  others: Pick<Problem, 'from' | 'to'>[]
}

export function read(text: string): Read {
  const found: Read = { manifests: [], problems: [], others: [] }
  for (const { document, value, problems } of parseAll(text)) {
    const [from = 0, , to = text.length] = document.range ?? []
    found.problems.push(...problems)
    if (isMap(document.contents) && problems.length === 0) found.manifests.push({ object: value as KubeObject, document, from, to })
    else if (problems.length === 0) found.others.push(rangeOf(document.contents) ?? { from, to })
  }
  return found
}

/** Splits a path of a Kubernetes error: spec.containers[0].image, metadata.labels[app.kubernetes.io/name] */
export function steps(path: string): (string | number)[] {
  const found: (string | number)[] = []
  for (const [, name, inner] of path.matchAll(/([^.[\]]+)|\[([^\]]*)\]/g)) {
    if (name !== undefined) found.push(name)
    else if (inner !== undefined) found.push(/^\d+$/.test(inner) ? Number(inner) : inner.replace(/^"(.*)"$/, '$1'))
  }
  return found
}

/** Position of a field; of an absent one, its parent's. */
export function locate({ document, from, to }: Manifest, path: string): { from: number; to: number } {
  let node: unknown = document.contents
  let place = { from, to: Math.min(to, from + 1) }
  for (const step of steps(path)) {
    if (isMap(node)) {
      const pair = node.items.find(({ key }) => isScalar(key) && String(key.value) === String(step))
      if (!pair) break
      place = rangeOf(pair.key) ?? place
      node = pair.value
    } else if (isSeq(node) && typeof step === 'number' && node.items[step] !== undefined) {
      node = node.items[step]
      place = rangeOf(node) ?? place
    } else if (isSeq(node) && typeof step === 'string' && step.includes('=')) {
      const item = itemOf(node.items, step)
      if (!item) break
      node = item
      place = rangeOf(item) ?? place
    } else break
  }
  // The value itself, if it is on one line.
  return isScalar(node) ? (rangeOf(node) ?? place) : place
}

/** The list item with these keys: containerPort=80,protocol="TCP" */
function itemOf(items: unknown[], keys: string): unknown {
  const wanted = keys.split(',').map((one) => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1).replace(/^"(.*)"$/, '$1')] as const)
  return items.find((item) => isMap(item) && wanted.every(([key, value]) => String(item.get(key)) === value))
}

function rangeOf(node: unknown): { from: number; to: number } | undefined {
  const range = (node as { range?: [number, number, number] } | null)?.range
  return range ? { from: range[0], to: range[1] } : undefined
}

/** Fields that API servers add. */
export function withoutServerFields<T extends KubeObject>(object: T, { version }: { version: boolean }): T {
  const { managedFields: _m, uid: _u, creationTimestamp: _c, generation: _g, resourceVersion, ...metadata } = object.metadata
  const { status: _s, ...rest } = object
  const annotations = Object.fromEntries(Object.entries(metadata.annotations ?? {}).filter(([key]) => key !== 'resource.karmada.io/cached-from-cluster'))
  delete metadata.annotations
  return {
    ...rest,
    metadata: { ...metadata, ...(Object.keys(annotations).length > 0 && { annotations }), ...(version && resourceVersion && { resourceVersion }) },
  } as unknown as T
}
