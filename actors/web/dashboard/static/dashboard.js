// Keeps a page new: asks for its content again and again, and changes what differs, so that focus, selection and
// scrolling stay where they are. Without it the page works as well, and is loaded anew now and then.
'use strict';
(() => {
  const EVERY_MS = 2000, PATIENCE_MS = 10000;
  const main = document.getElementById('main'), link = document.getElementById('link');
  if (!main || !main.hasAttribute('data-live')) return;
  let timer = 0, looking = false, lostSince = null;

  const attributes = (old, next) => {
    for (const {name} of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
    for (const {name, value} of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };
  const morph = (old, next) => {
    attributes(old, next);
    const named = new Map([...old.children].filter(child => child.id).map(child => [child.id, child]));
    let place = old.firstChild;
    for (const child of [...next.childNodes]) {
      while (place && place.id && !next.querySelector(`:scope > #${CSS.escape(place.id)}`)) {
        const gone = place;
        place = place.nextSibling;
        gone.remove();
      }
      const same = child.id ? named.get(child.id) : place && !place.id ? place : null;
      if (!same || same.nodeName !== child.nodeName) {
        old.insertBefore(child, place);
        continue;
      }
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      if (child.nodeType === Node.ELEMENT_NODE) morph(same, child);
      else if (same.data !== child.data) same.data = child.data;
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  };

  const say = text => { if (link.textContent !== text) link.textContent = text; };
  const time = () => new Date().toLocaleTimeString();
  const found = () => {
    lostSince = null;
    link.classList.remove('lost');
    main.classList.remove('stale');
    say('Live');
    document.title = main.dataset.title;
  };
  const lost = why => {
    lostSince ??= time();
    link.classList.add('lost');
    main.classList.add('stale');
    say(`No answer since ${lostSince} (${why}): what is shown is from before`);
  };

  const look = async () => {
    if (looking || document.hidden) return;
    looking = true;
    clearTimeout(timer);
    try {
      const answer = await fetch(location.pathname + location.search, {
        headers: {'Actors-Live': '1'}, cache: 'no-store', redirect: 'manual', signal: AbortSignal.timeout(PATIENCE_MS),
      });
      // The token isn't taken any more: a browser asks for another one when it loads a page.
      if (answer.status === 401) return location.reload();
      if (!answer.ok) throw new Error(`the worker says ${answer.status}`);
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html').getElementById('main');
      if (!next) throw new Error('the answer is no page');
      morph(main, next);
      found();
    } catch (error) {
      lost(error instanceof TypeError ? 'the worker can’t be reached' : error.message);
    } finally {
      looking = false;
      timer = setTimeout(look, EVERY_MS);
    }
  };

  // A retry doesn't leave the page: what comes of it is shown there.
  main.addEventListener('submit', async event => {
    const form = event.target;
    if (!form.hasAttribute('data-quiet')) return;
    event.preventDefault();
    const button = form.querySelector('button');
    button.disabled = true;
    try {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.action, {method: 'POST', body, redirect: 'manual'});
      if (answer.type !== 'opaqueredirect') throw new Error(`the worker says ${answer.status}`);
      await look();
    } catch (error) {
      lost(error.message);
    } finally {
      button.disabled = false;
    }
  });
  document.addEventListener('visibilitychange', look);
  say('Live');
  document.title = main.dataset.title;
  timer = setTimeout(look, EVERY_MS);
})();
