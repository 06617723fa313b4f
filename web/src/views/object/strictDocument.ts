// Document wrapper for xterm.js, which creates <style> elements and style attributes that the content security policy forbids. The wrapper
// turns them into constructed style sheets and properties set by script, which are allowed. xterm.js accepts a document as an option, but
// its renderer ignores the option, so the page's own createElement is replaced as well while a terminal exists.

export interface StrictDocument {
  document: Document
  /** Removes the style sheets and restores the page's createElement. */
  close: () => void
}

export function strictDocument(page: Document): StrictDocument {
  const create = page.createElement.bind(page)
  const sheets = new Set<CSSStyleSheet>()
  const removeSheet = (sheet: CSSStyleSheet) => {
    sheets.delete(sheet)
    page.adoptedStyleSheets = page.adoptedStyleSheets.filter((other) => other !== sheet)
  }
  const createStyle = () => {
    const sheet = new CSSStyleSheet()
    sheets.add(sheet)
    page.adoptedStyleSheets = [...page.adoptedStyleSheets, sheet]
    const placeholder = create('span')
    placeholder.hidden = true
    let text = ''
    Object.defineProperty(placeholder, 'textContent', {
      get: () => text,
      set: (newText: string) => sheet.replaceSync((text = newText)),
    })
    placeholder.remove = () => {
      removeSheet(sheet)
      Element.prototype.remove.call(placeholder)
    }
    return placeholder
  }
  const createElement = (name: string) => {
    if (name === 'style') return createStyle()
    const created = create(name)
    created.setAttribute = (attribute: string, value: string) => {
      if (attribute === 'style') created.style.cssText = value
      else Element.prototype.setAttribute.call(created, attribute, value)
    }
    return created
  }
  const document = new Proxy(page, {
    get(target, property) {
      if (property === 'createElement') return createElement
      const value: unknown = Reflect.get(target, property, target)
      return typeof value === 'function' ? (value as (...args: unknown[]) => unknown).bind(target) : value
    },
  })
  const pageCreateElement = createElement as Document['createElement']
  page.createElement = pageCreateElement
  const close = () => {
    sheets.forEach(removeSheet)
    // Other calls are passed to the browser's document.
    if (page.createElement === pageCreateElement) delete (page as Partial<Document>).createElement
  }
  return { document, close }
}
