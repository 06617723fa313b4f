// Terminal commands for the tabs of an object: kubectl, and crowsnest where it can do more. Has no side effects.
import type { Tab } from '../../api/address'
import { clusterRoot, CONTROL_PLANE, groupOf, type ObjectRef, qualifiedName } from '../../api/client'
import { explanationPath, templateName } from '../../api/propagation'
import { API } from '../../api/searchApi'
import { objectParameters } from './objects'

export interface Command {
  tool: 'kubectl' | 'crowsnest'
  text: string
}

/** The state of a view that a command depends on. */
export interface CommandContext {
  kind: string
  uid?: string | undefined
  view: Record<string, string>
  /** The query of the displayed logs. */
  logs?: string
  /** The journal's name of the object. */
  about?: string
}

/** Quotes a word for a POSIX shell, if necessary. */
export function shellQuote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}

const joinWords = (...values: (string | undefined | false)[]) => values.filter((word) => typeof word === 'string' && word !== '').join(' ')
/** A flag with its value; undefined without a value. */
const flag = (name: string, value: string | undefined) => (value ? `${name} ${shellQuote(value)}` : undefined)

export function commandsFor(ref: ObjectRef, tab: Tab, { kind, uid, view, logs, about }: CommandContext): Command[] {
  const { cluster, resource, namespace, name } = ref
  const group = groupOf(ref.apiVersion)
  const typedName = `${resource}${group && `.${ref.apiVersion.split('/')[1]}.${group}`}/${name}`
  const isControlPlane = cluster === CONTROL_PLANE
  const kubectl = joinWords('kubectl', clusterRoot(cluster) && flag('--context', cluster), flag('-n', namespace))
  const raw = (path: string): Command => ({ tool: 'kubectl', text: joinWords('kubectl get --raw', shellQuote(`${API}/${path}`)) })
  const targetFlags = joinWords(flag('-n', namespace), !isControlPlane && flag('--cluster', cluster))
  const kindOf = qualifiedName(kind.toLowerCase(), ref.apiVersion)
  const reference = [kindOf, namespace, name].filter(Boolean).join('/')
  switch (tab) {
    case 'overview':
      return [
        { tool: 'kubectl', text: `${kubectl} describe ${typedName}` },
        { tool: 'crowsnest', text: joinWords('crowsnest search', shellQuote(`kind:${kindOf} name:=${name}${namespace ? ` ns:=${namespace}` : ''} cluster:=${cluster}`)) },
      ]
    case 'yaml':
      return [
        { tool: 'kubectl', text: joinWords(kubectl, view.edit === 'true' ? 'edit' : 'get', typedName, view.edit !== 'true' && '-o yaml', view.managed === 'true' && '--show-managed-fields') },
        ...(isControlPlane ? [] : [{ tool: 'crowsnest' as const, text: joinWords('crowsnest get', `${resource}${group && `.${group}`}/${name}`, targetFlags, '-o yaml') }]),
      ]
    case 'events':
      return [
        { tool: 'kubectl', text: joinWords(kubectl, 'get events', !namespace && '-A', `--field-selector=${uid ? `involvedObject.uid=${uid}` : `involvedObject.name=${name}`}`) },
        { tool: 'crowsnest', text: `crowsnest search ${shellQuote(`kind:event about:${reference} cluster:=${cluster}`)}` },
      ]
    case 'related':
      return [
        raw(`graph?${objectParameters(ref)}${view.depth ? `&depth=${view.depth}` : ''}`),
        { tool: 'crowsnest', text: `crowsnest search ${shellQuote(`related:${reference} cluster:=${cluster}${view.depth ? ` depth:${view.depth}` : ''}`)}` },
      ]
    case 'placement':
    case 'topology':
    case 'drift': {
      const template = { apiVersion: ref.apiVersion, resource, namespace, name }
      return [
        { tool: 'kubectl', text: joinWords('kubectl get --raw', shellQuote(explanationPath(template))) },
        { tool: 'crowsnest', text: joinWords('crowsnest explain', templateName(template).replace(':', '/'), flag('-n', namespace)) },
      ]
    }
    case 'history': {
      if (view.with) return [raw(`diff?${objectParameters(ref)}&with=${encodeURIComponent(view.with)}`)]
      const between = ['from', 'to'].filter((end) => view[end]).map((end) => `&${end}=${view[end]}`)
      return [raw(`history?${objectParameters(ref)}`), raw(`diff?${objectParameters(ref)}${between.join('')}`)]
    }
    case 'journal': {
      const around = ['at', 'within'].filter((name) => view[name]).map((name) => `&${name}=${encodeURIComponent(view[name] ?? '')}`)
      const times = joinWords(flag('--at', view.at), view.at && flag('--within', view.within))
      return [
        raw(`journal?about=${encodeURIComponent(about ?? '')}${around.join('')}`),
        { tool: 'crowsnest', text: joinWords('crowsnest journal', `${resource}${group && `.${group}`}/${name}`, flag('-n', namespace), times) },
      ]
    }
    case 'logs': {
      const times = joinWords(flag('--since', view.since), flag('--tail', view.tail), view.follow !== 'false' && view.previous !== 'true' && '-f', view.previous === 'true' && '-p')
      const container = flag('-c', view.container)
      const lines = joinWords(flag('--include', view.include), flag('--exclude', view.exclude))
      return [
        // kubectl selects no pods of a CronJob.
        ...(resource === 'cronjobs' ? [] : [{ tool: 'kubectl' as const, text: joinWords(kubectl, 'logs', typedName, container ?? '--all-containers', times, view.timestamps === 'true' && '--timestamps') }]),
        ...(logs ? [{ tool: 'crowsnest' as const, text: joinWords('crowsnest logs', shellQuote(logs), container && flag('-c', `^${view.container}$`), times, lines) }] : []),
      ]
    }
    case 'terminal': {
      const container = flag('-c', view.container)
      const shell = view.shell && view.shell !== 'auto' ? view.shell : 'sh'
      return [
        { tool: 'kubectl', text: joinWords(kubectl, 'exec -it', name, container, '--', shell) },
        { tool: 'crowsnest', text: joinWords('crowsnest exec -it', targetFlags, name, container, '--', shell) },
      ]
    }
  }
}
