import { Link } from 'wouter'
import { objectAddress, searchAddress } from '../../api/address'
import { CONTROL_PLANE, isKind, type ObjectRef, qualified } from '../../api/client'
import { involvedAddress, involvedOf } from '../../api/involved'
import { isTold } from '../../api/journal'
import { resourceOf } from '../../api/kinds'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { since } from '../../parts/format'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { facts, keys, type Condition, type Container, type Port } from './facts'

/** Summary of an object; values link to other objects with them. */
export function Overview({ refTo, object }: { refTo: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  const { conditions, containers, ports, fields } = facts(object)
  const { labels = {}, annotations = {}, finalizers = [], ownerReferences = [] } = object.metadata
  const data = keys(object)
  const about = involvedOf(object)
  const aboutAddress = about && involvedAddress(refTo.cluster, about)
  const aboutName = about && `${about.kind ?? ''} ${about.namespace ? `${about.namespace}/` : ''}${about.name ?? ''}`.trim()
  return (
    <div className="overview">
      {object.metadata.deletionTimestamp && <p role="alert">{t.beingDeleted(since(object.metadata.deletionTimestamp))}</p>}
      <Managed refTo={refTo} object={object} />
      <dl className="facts">
        {fields.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{name === 'nodeName' ? <Link href={objectAddress({ cluster: refTo.cluster, apiVersion: 'v1', resource: 'nodes', name: value })}>{value}</Link> : value}</dd>
          </div>
        ))}
        {about && (
          <div>
            <dt>{t.about}</dt>
            <dd>{aboutAddress === undefined ? aboutName : <Link href={aboutAddress}>{aboutName}</Link>}</dd>
          </div>
        )}
        {ownerReferences.map((owner) => {
          const resource = resourceOf(owner.apiVersion, owner.kind)
          const there = { cluster: refTo.cluster, apiVersion: owner.apiVersion, namespace: isKind(owner, '', 'Node') ? undefined : refTo.namespace, name: owner.name }
          const q = `kind:${qualified(owner.kind, owner.apiVersion)} name:=${owner.name} cluster:=${refTo.cluster}`
          return (
            <div key={`${owner.kind}/${owner.name}`}>
              <dt>{t.owner}</dt>
              <dd>
                <Link href={resource ? objectAddress({ ...there, resource }) : searchAddress({ q })}>
                  {owner.kind} {owner.name}
                </Link>
              </dd>
            </div>
          )
        })}
        {finalizers.length > 0 && (
          <div>
            <dt>{t.finalizers}</dt>
            <dd>{finalizers.join(', ')}</dd>
          </div>
        )}
        {data.length > 0 && (
          <div>
            <dt>{t.keysOfData}</dt>
            <dd>{data.join(', ')}</dd>
          </div>
        )}
      </dl>
      {conditions.length > 0 && <Conditions conditions={conditions} />}
      {containers.length > 0 && <Containers containers={containers} />}
      {ports.length > 0 && <Ports ports={ports} />}
      <h2>{t.labels}</h2>
      {Object.keys(labels).length === 0 && <p className="empty">{t.none}</p>}
      <ul className="labels">
        {Object.entries(labels).map(([key, value]) => (
          <li key={key}>
            <Link href={searchAddress({ q: `label:${key}=${value}` })} title={t.searchLabel}>
              {key}={value}
            </Link>
          </li>
        ))}
      </ul>
      {Object.keys(annotations).length > 0 && (
        <details>
          <summary>{t.annotations(Object.keys(annotations).length)}</summary>
          <dl className="annotations">
            {Object.entries(annotations).map(([key, value]) => (
              <div key={key}>
                <dt>{key}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  )
}

/** A copy that is propagated from a template. */
export const isManaged = (refTo: ObjectRef, object: KubeObject) =>
  refTo.cluster !== CONTROL_PLANE && isTold(refTo, object)

/** Links to the template: changes of the copy are reverted. */
export function Managed({ refTo, object }: { refTo: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  if (!isManaged(refTo, object)) return null
  return (
    <p className="notice managed">
      {t.managed}{' '}
      <Link href={objectAddress({ ...refTo, cluster: CONTROL_PLANE })}>
        {t.template} <ClusterName name={CONTROL_PLANE} />
      </Link>
    </p>
  )
}

function Conditions({ conditions }: { conditions: Condition[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.conditions} heads={t.conditionColumns}>
      {conditions.map(({ type, status, good, reason, message, since: from }) => (
        <tr key={type}>
          <th scope="row">{type}</th>
          <td>
            <Pill state={status} tone={good === undefined ? 'warn' : good ? 'good' : 'bad'} />
          </td>
          <td>{reason}</td>
          <td>{message}</td>
          <td title={from}>{since(from)}</td>
        </tr>
      ))}
    </Table>
  )
}

function Containers({ containers }: { containers: Container[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.containers} heads={t.containerColumns}>
      {containers.map(({ name, init, image, state, ready, restarts, ports, requests, limits }) => (
        <tr key={name}>
          <th scope="row">
            {name} {init && <small>{t.init}</small>}
          </th>
          <td className="image">
            <Link href={searchAddress({ q: `image:"${image}"` })} title={t.searchImage}>
              {image}
            </Link>
          </td>
          <td>
            <Pill state={state} tone={ready === undefined ? 'idle' : ready ? 'good' : 'bad'} />
          </td>
          <td className="number">{restarts}</td>
          <td>{ports.join(', ')}</td>
          <td>{requests}</td>
          <td>{limits}</td>
        </tr>
      ))}
    </Table>
  )
}

function Ports({ ports }: { ports: Port[] }) {
  const t = useTextOf(texts)
  return (
    <Table caption label={t.ports} heads={t.portColumns}>
      {ports.map(({ name, port, target }) => (
        <tr key={port}>
          <th scope="row">{name || '—'}</th>
          <td>{port}</td>
          <td>{target}</td>
        </tr>
      ))}
    </Table>
  )
}
